"""Reads the files of `deploy/` with their own tools, and prints the result as JSON. Runs in a separate Python environment.

usage: read.py chart FOLDER < VALUES    the rendered Helm chart, validated by Kubernetes' schemas
       read.py compose FILE SCHEMA      the compose file, validated by the schema
       read.py yaml FILE...             YAML as JSON
"""

import json
import sys

import yaml

# The oldest version that the chart supports, and the newest released version.
KUBERNETES = ("1.30", "1.37")


def chart(folder):
    import helm_python as helm
    import kubernetes_validate

    values = json.load(sys.stdin)
    lint = helm.lint(folder, values, strict=True)
    if lint["errors"]:
        return {"errors": [str(error) for error in lint["errors"]]}
    with helm.Chart.load(folder) as chart:
        chart.validate_schema(values)
        rendered = chart.render(values, name="rel", namespace="ns")
    documents = [document for name, text in rendered.items() if name.endswith(".yaml")
                 for document in yaml.safe_load_all(text) if document]
    errors, checked = [], 0
    for document in documents:
        for version in KUBERNETES:
            try:
                kubernetes_validate.validate(document, version, strict=True)
                checked += 1
            except kubernetes_validate.SchemaNotFoundError:
                # The resource belongs to an operator. The test validates it separately.
                continue
            except kubernetes_validate.ValidationError as error:
                errors.append(f"{document['kind']} in {version}: {error}")
    notes = next(text for name, text in rendered.items() if name.endswith("NOTES.txt"))
    return {"errors": errors, "checked": checked, "documents": documents, "notes": notes}


def compose(file, schema):
    import jsonschema

    document = yaml.safe_load(open(file))
    # The schema is older than `name`.
    unnamed = {key: value for key, value in document.items() if key != "name"}
    errors = jsonschema.Draft7Validator(json.load(open(schema))).iter_errors(unnamed)
    return {"errors": [f"{list(error.path)}: {error.message}" for error in errors], "document": document}


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    try:
        result = {"chart": chart, "compose": compose, "yaml": lambda *files: [yaml.safe_load(open(f)) for f in files]}[command](*rest)
    except Exception as error:  # Tests expect some files to be refused.
        result = {"errors": [f"{type(error).__name__}: {error}"]}
    json.dump(result, sys.stdout, default=str)
