"""The shape of Grafana's dashboards: what is the same in every panel is said here once.

A panel is made of a title, a unit, a sentence, and queries; `panels.py` says which. In a query `@` stands for the chosen
instances, and `[~]` for the range that Grafana finds right for the scrape interval and the width of the picture.
"""

# Grafana 12; older ones that are still maintained read it, too.
SCHEMA = 41
# Grafana's grid is this many columns wide.
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def expand(query):
    return query.replace("@", 'instance=~"$instance"').replace("[~]", "[$__rate_interval]")


def steps(first, *further):
    """Colours from a first one on: `steps("green", ("orange", 0.5))`."""
    bounds = [{"color": first, "value": None}] + [{"color": color, "value": value} for color, value in further]
    return {"mode": "absolute", "steps": bounds}


def words(*meanings):
    """Numbers that mean something, from 0: `words(("closed", "green"), ("open", "red"))`."""
    options = {str(n): {"text": text, "color": color, "index": n} for n, (text, color) in enumerate(meanings)}
    return [{"type": "value", "options": options}]


def panel(kind, title, unit, description, queries, width, height, options, custom=None, **defaults):
    """Any panel. `queries` are (legend, query) or just a query; `defaults` go to the fields' defaults, `None` left out."""
    field = {"unit": unit, **{name: value for name, value in defaults.items() if value is not None}}
    if custom:
        field["custom"] = custom
    targets = []
    for index, query in enumerate(queries):
        legend, query = query if isinstance(query, tuple) else ("", query)
        targets.append({"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expand(query),
                        "legendFormat": legend, "range": True})
    return {
        "type": kind, "title": title, "description": description, "datasource": SOURCE,
        "gridPos": {"w": width, "h": height}, "fieldConfig": {"defaults": field, "overrides": []},
        "options": options, "targets": targets,
    }


def stat(title, unit, description, query, width=4, **defaults):
    """One number, coloured, over the line of its past."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
               "colorMode": "value", "graphMode": "area"}
    return panel("stat", title, unit, description, [query], width, 4, options, **defaults)


def share(title, description, query, width=4, **defaults):
    """One share of a whole, as a percentage."""
    return stat(title, "percentunit", description, query, width, **{"min": 0, "max": 1, "decimals": 1, **defaults})


LEGEND = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
          "tooltip": {"mode": "multi", "sort": "desc"}}
LINE = {"drawStyle": "line", "showPoints": "never", "spanNulls": False}


def lines(title, unit, description, *queries, width=12, log=False, **defaults):
    """Lines over time, from zero, or on a logarithmic scale."""
    custom = {**LINE, "lineWidth": 2, "fillOpacity": 0}
    if log:
        custom["scaleDistribution"] = {"type": "log", "log": 10}
    low = None if log else 0
    return panel("timeseries", title, unit, description, queries, width, 8, LEGEND, custom, **{"min": low, **defaults})


def shares(title, description, *queries, width=12):
    """Lines between nothing and all."""
    return lines(title, "percentunit", description, *queries, width=width, max=1)


def stack(title, unit, description, *queries, width=12):
    """Parts that add up to a whole."""
    custom = {**LINE, "lineWidth": 1, "fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    return panel("timeseries", title, unit, description, queries, width, 8, LEGEND, custom, min=0)


def states(title, description, query, meanings, width=12):
    """Which of a few states something was in, and when."""
    options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": False}, "mergeValues": True,
               "showValue": "auto", "tooltip": {"mode": "single", "sort": "none"}}
    custom = {"fillOpacity": 80, "lineWidth": 0}
    return panel("state-timeline", title, "short", description, [query], width, 8, options, custom, mappings=meanings)


def heat(title, unit, description, query, width=12):
    """How a histogram's buckets fill over time; `query` keeps the label `le`."""
    options = {
        "calculate": False, "cellGap": 1, "cellValues": {"unit": "short"}, "rowsFrame": {"layout": "le"},
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
                  "scale": "exponential", "reverse": False},
        "filterValues": {"le": 1e-9}, "legend": {"show": True}, "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False}, "yAxis": {"axisPlacement": "left", "unit": unit},
    }
    made = panel("heatmap", title, unit, description, [("{{le}}", query)], width, 8, options)
    made["targets"][0]["format"] = "heatmap"
    return made


def table(title, unit, description, *columns, width=24, sort=None):
    """One row per set of labels. `columns` are (name, unit or value mappings, query), joined by the labels they share."""
    options = {"showHeader": True, "cellHeight": "sm",
               "sortBy": [{"displayName": sort, "desc": True}] if sort else []}
    made = panel("table", title, unit, description, [query for _, _, query in columns], width, 8, options,
                 {"align": "auto", "cellOptions": {"type": "auto"}})
    names = {}
    for target, (name, shown, _) in zip(made["targets"], columns):
        target.update(format="table", instant=True, range=False)
        names[f"Value #{target['refId']}"] = name
        properties = [{"id": "unit", "value": shown}]
        if isinstance(shown, list):
            properties = [{"id": "mappings", "value": shown},
                          {"id": "custom.cellOptions", "value": {"type": "color-text"}}]
        made["fieldConfig"]["overrides"].append(
            {"matcher": {"id": "byName", "options": name}, "properties": properties})
    organized = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": {}}
    made["transformations"] = [{"id": "merge", "options": {}}, {"id": "organize", "options": organized}]
    return made


def row(title, *panels):
    """A heading, and what stands below it from left to right."""
    return title, panels


def choice(name, label, query):
    """A variable with several values of a label, all of them at first."""
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "hide": 0,
    }


def dashboard(name, title, description, rows, *choices):
    """A whole dashboard; `name` is that of its file and part of its address."""
    panels, top = [], 0
    for heading, below in rows:
        left, height = 0, 1
        heading = {"type": "row", "title": heading, "collapsed": False, "panels": [],
                   "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}}
        panels.append({"id": len(panels) + 1, **heading})
        top += 1
        for made in below:
            place = made["gridPos"]
            if left + place["w"] > COLUMNS:
                left, top = 0, top + height
            place.update(x=left, y=top)
            left, height = left + place["w"], place["h"]
            panels.append({"id": len(panels) + 1, **made})
        top += height
    return name, {
        "title": f"slotfront / {title}", "uid": f"slotfront-{name}", "description": description,
        "tags": ["slotfront"], "schemaVersion": SCHEMA, "version": 1, "editable": True, "graphTooltip": 1,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "", "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "slotfront", "tags": ["slotfront"], "asDropdown": False,
                   "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "dashboard", "tooltip": "",
                   "url": ""}],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
             "hide": 0},
            choice("instance", "Instance", "label_values(slotfront_build_info, instance)"),
            *choices,
        ]},
        "panels": panels,
    }
