#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates the expressions of a ValidatingAdmissionPolicy for requests, as an API server does.

    tests/deploy/admission_policy.py POLICY.yaml < requests.json > answers.json

Requests are a list of objects {operation, username, node, object, oldObject}; answers are a list of strings: "" if the
request is admitted, else the message of the first failed validation. Exits with 77 if no CEL evaluator is installed
(pip install cel-python).
"""
import json
import sys

try:
    import celpy
    import yaml
except ImportError as missing:
    print(missing)
    sys.exit(77)

NODE = "authentication.kubernetes.io/node-name"


def substring(text, start, end=None):
    """As in the library "strings" of API servers, where positions outside of the text are errors."""
    length = len(text)
    first, last = int(start), length if end is None else int(end)
    if not 0 <= first <= last <= length:
        return celpy.CELEvalError(f"index out of range: {first}")
    return celpy.celtypes.StringType(str(text)[first:last])


FUNCTIONS = {"substring": substring}
environment = celpy.Environment()


def evaluate(expression, values):
    program = environment.program(environment.compile(expression), functions=FUNCTIONS)
    return program.evaluate(values)


def answer(policy, request):
    spec = policy["spec"]
    extra = {NODE: [request["node"]]} if request.get("node") else None
    user = {"username": request["username"]}
    if extra is not None:
        user["extra"] = extra
    values = {
        "request": celpy.json_to_cel({"operation": request["operation"], "userInfo": user}),
        "object": celpy.json_to_cel(request.get("object")),
        "oldObject": celpy.json_to_cel(request.get("oldObject")),
    }
    for condition in spec.get("matchConditions", []):
        if not evaluate(condition["expression"], values):
            return ""
    variables = {}
    for variable in spec.get("variables", []):
        values["variables"] = celpy.celtypes.MapType(
            {celpy.celtypes.StringType(name): value for name, value in variables.items()}
        )
        variables[variable["name"]] = evaluate(variable["expression"], values)
    values["variables"] = celpy.celtypes.MapType(
        {celpy.celtypes.StringType(name): value for name, value in variables.items()}
    )
    for validation in spec["validations"]:
        try:
            holds = evaluate(validation["expression"], values)
        except celpy.CELEvalError as failure:
            return f"failed to evaluate: {failure}"  # failurePolicy: Fail
        if not holds:
            if "messageExpression" in validation:
                return str(evaluate(validation["messageExpression"], values))
            return validation.get("message", "failed expression: " + validation["expression"])
    return ""


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        documents = [each for each in yaml.safe_load_all(file) if each]
    policy = next(each for each in documents if each["kind"] == "ValidatingAdmissionPolicy")
    json.dump([answer(policy, each) for each in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
