"""The kinds of panels that `panels.py` speaks of, made with Grafana's own builder (`grafana-foundation-sdk`).

A panel is made of a title, a unit, a sentence, and queries; what is the same in every panel of a kind is said here once.
In a query `@` stands for the chosen instances, and `[~]` for the range that Grafana finds right for the scrape interval and
the width of the picture.
"""

from itertools import count

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat as number, statetimeline, table as grid
from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.builders.dashboard import (AnnotationQuery, Dashboard, DashboardLink, DatasourceVariable, QueryVariable, Row,
                                                       ThresholdsConfig)
from grafana_foundation_sdk.models import common as words_of
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync, DashboardLinkType, DataSourceRef, DataTransformerConfig, DynamicConfigValue, Threshold, ThresholdsMode,
    ValueMap, ValueMappingResult, VariableOption, VariableRefresh, VariableSort)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

REPOSITORY = "https://github.com/slotfront/slotfront/blob/main/"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


# What a series means has the same colour in every panel.
COLORS = [("error$|timeout$|status_.*$|connect$|reset$|certificate.*|.*refused$", "red"), ("limited$|denied$|invalid$", "orange"),
          ("hit$|carried$", "green"), ("stale$|derived$|collapsed$", "light-green"), ("miss$|bypass$", "blue")]


def expand(query):
    return query.replace("@", 'instance=~"$instance"').replace("[~]", "[$__rate_interval]")


def steps(first, *further):
    """Colours from a first one on: `steps("green", ("orange", 0.5))`."""
    bounds = [Threshold(None, first), *(Threshold(value, color) for color, value in further)]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(bounds)


def words(*meanings):
    """Numbers that mean something, from 0: `words(("closed", "green"), ("open", "red"))`."""
    return [ValueMap({str(n): ValueMappingResult(text, color, index=n) for n, (text, color) in enumerate(meanings)})]


def targets(queries):
    """The targets of `queries`, which are (legend, query) or just a query."""
    named = [query if isinstance(query, tuple) else ("", query) for query in queries]
    return [prometheus.Dataquery().ref_id(chr(ord("A") + index)).datasource(SOURCE).expr(expand(query)).legend_format(legend)
            .range() for index, (legend, query) in enumerate(named)]


def panel(kind, title, unit, description, made, width, height, **defaults):
    """Any panel. `made` are its targets; `defaults` go to the fields' defaults, `None` left out."""
    kind.title(title).unit(unit).description(description).datasource(SOURCE).targets(made).span(width).height(height)
    for name, value in defaults.items():
        if value is not None:
            getattr(kind, name)(value)
    return kind


def stat(title, unit, description, query, width=4, **defaults):
    """One number, coloured, over the line of its past."""
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    kind = number.Panel().reduce_options(last)
    kind.color_mode(words_of.BigValueColorMode.VALUE).graph_mode(words_of.BigValueGraphMode.AREA)
    return panel(kind, title, unit, description, targets([query]), width, 4, **defaults)


def share(title, description, query, width=4, **defaults):
    """One share of a whole, as a percentage."""
    return stat(title, "percentunit", description, query, width, **{"min": 0, "max": 1, "decimals": 1, **defaults})


def legend(shown):
    below = common.VizLegendOptions().display_mode(words_of.LegendDisplayMode.LIST)
    return below.placement(words_of.LegendPlacement.BOTTOM).show_legend(shown)


def curves(line_width, opacity):
    kind = timeseries.Panel().legend(legend(True)).draw_style(words_of.GraphDrawStyle.LINE).span_nulls(False)
    kind.show_points(words_of.VisibilityMode.NEVER).line_width(line_width).fill_opacity(opacity)
    tooltip = common.VizTooltipOptions().mode(words_of.TooltipDisplayMode.MULTI).sort(words_of.SortOrder.DESCENDING)
    for pattern, color in COLORS:
        kind.override_by_regexp(f"/^(.*[ :])?({pattern})/", [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": color})])
    return kind.tooltip(tooltip)


def lines(title, unit, description, *queries, width=12, log=False, **defaults):
    """Lines over time, from zero, or on a logarithmic scale."""
    kind = curves(2, 0)
    if log:
        kind.scale_distribution(common.ScaleDistributionConfig().type(words_of.ScaleDistribution.LOG).log(10))
    low = None if log else 0
    return panel(kind, title, unit, description, targets(queries), width, 8, **{"min": low, **defaults})


def shares(title, description, *queries, width=12):
    """Lines between nothing and all."""
    return lines(title, "percentunit", description, *queries, width=width, max=1)


def stack(title, unit, description, *queries, width=12):
    """Parts that add up to a whole."""
    kind = curves(1, 60).stacking(common.StackingConfig().mode(words_of.StackingMode.NORMAL).group("A"))
    return panel(kind, title, unit, description, targets(queries), width, 8, min=0)


def states(title, description, query, meanings, width=12):
    """Which of a few states something was in, and when."""
    kind = statetimeline.Panel().legend(legend(False)).merge_values(True).show_value(words_of.VisibilityMode.AUTO)
    kind.fill_opacity(80).line_width(0)
    return panel(kind, title, "short", description, targets([query]), width, 8, mappings=meanings)


def heat(title, unit, description, query, width=12):
    """How a histogram's buckets fill over time; `query` keeps the label `le`."""
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64).exponent(0.5)
    colors.fill("dark-orange").scale(HeatmapColorScale.EXPONENTIAL).reverse(False)
    axis = heatmap.YAxisConfig().axis_placement(words_of.AxisPlacement.LEFT).unit(unit)
    kind = heatmap.Panel().calculate(False).cell_gap(1).color(colors).y_axis(axis).show_value(words_of.VisibilityMode.NEVER)
    kind.rows_frame(heatmap.RowsHeatmapOptions().layout(words_of.HeatmapCellLayout.LE))
    kind.filter_values(heatmap.FilterValueRange().le(1e-9)).cell_values(heatmap.CellValues().unit("short"))
    made = targets([("{{le}}", query)])
    made[0].format(PromQueryFormat.HEATMAP)
    return panel(kind, title, unit, description, made, width, 8)


def table(title, unit, description, *columns, width=24, sort=None):
    """One row per set of labels. `columns` are (name, unit or value mappings, query), joined by the labels they share."""
    kind = grid.Panel().sort_by([common.TableSortByFieldState().display_name(sort).desc(True)] if sort else [])
    made, names = targets([query for _, _, query in columns]), {}
    for target, (name, shown, _) in zip(made, columns):
        target.format(PromQueryFormat.TABLE).instant()
        names[f"Value #{target.build().ref_id}"] = name
        properties = [DynamicConfigValue("unit", shown)]
        if isinstance(shown, list):
            properties = [DynamicConfigValue("mappings", shown), DynamicConfigValue("custom.cellOptions", {"type": "color-text"})]
        kind.override_by_name(name, properties)
    organized = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": {}}
    kind.transformations([DataTransformerConfig("merge", options={}), DataTransformerConfig("organize", options=organized)])
    return panel(kind, title, unit, description, made, width, 8)


def row(title, *panels):
    """A heading, and what stands below it from left to right."""
    return Row(title), panels


def choice(name, label, query):
    """A variable with several values of a label, all of them at first."""
    variable = QueryVariable(name).label(label).datasource(SOURCE).query({"query": query, "refId": name})
    variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
    return variable.multi(True).include_all(True).all_value(".*").current(VariableOption(text="All", value="$__all"))


def note(name, color, query):
    """What happened at some moments, as lines in every panel."""
    return AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expand(query))


def dashboard(name, title, description, rows, *choices):
    """A whole dashboard; `name` is that of its file and part of its address."""
    made = Dashboard(f"slotfront / {title}").uid(f"slotfront-{name}").description(description).tags(["slotfront"])
    made.tooltip(DashboardCursorSync.CROSSHAIR).refresh("10s").time("now-1h", "now").timezone("")
    link = DashboardLink("slotfront").type(DashboardLinkType.DASHBOARDS).tags(["slotfront"]).icon("dashboard")
    made.link(link.include_vars(True).keep_time(True))
    instances = choice("instance", "Instance", "label_values(slotfront_build_info, instance)")
    source = DatasourceVariable("datasource").label("Data source").type("prometheus")
    made.variables([source, instances, *choices]).annotations([
        note("Restarts", "blue", "changes(slotfront_config_last_reload_success_timestamp_seconds{@}[1m]) > 0 "
             "and on (job, instance) process_start_time_seconds > time() - 120"),
        note("Reloads", "purple", "changes(slotfront_config_last_reload_success_timestamp_seconds{@}[1m]) > 0"),
        note("Alerts", "red", 'ALERTS{alertname=~"Slotfront.*",alertstate="firing"}')])
    runbook = DashboardLink("Runbook").type(DashboardLinkType.LINK).icon("doc")
    made.link(runbook.url(REPOSITORY + "deploy/runbook.md").target_blank(True))
    ids = count(1)
    for heading, panels in rows:
        made.with_row(heading.id(next(ids)))
        for one in panels:
            made.with_panel(one.id(next(ids)))
    return name, made.build()
