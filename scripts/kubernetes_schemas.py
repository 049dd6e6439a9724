#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints tests/deploy/schemas/kubernetes.json: names and types of the fields that gpushm's manifests may have.

    scripts/kubernetes_schemas.py swagger.json 1.36 > tests/deploy/schemas/kubernetes.json

swagger.json is an API server's /openapi/v2, or api/openapi-spec/swagger.json of the Kubernetes repository. The output omits
status, fields that the server sets, and most kinds of volumes.
"""
import json
import sys

KINDS = {
    "v1": ("io.k8s.api.core.v1", ["ConfigMap", "Namespace", "Pod", "ServiceAccount"]),
    "apps/v1": ("io.k8s.api.apps.v1", ["DaemonSet"]),
    "networking.k8s.io/v1": ("io.k8s.api.networking.v1", ["NetworkPolicy"]),
    "rbac.authorization.k8s.io/v1": ("io.k8s.api.rbac.v1", ["ClusterRole", "ClusterRoleBinding"]),
    "admissionregistration.k8s.io/v1": (
        "io.k8s.api.admissionregistration.v1",
        ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
    ),
    "resource.k8s.io/v1": ("io.k8s.api.resource.v1", ["DeviceClass", "ResourceClaim", "ResourceClaimTemplate"]),
    "resource.k8s.io/v1beta1": (
        "io.k8s.api.resource.v1beta1",
        ["DeviceClass", "ResourceClaim", "ResourceClaimTemplate"],
    ),
}
# Set by the server, or unused here: their definitions would be most of the file.
DROPPED = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generation",
        "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
    },
    "io.k8s.api.core.v1.PodSpec": {"ephemeralContainers"},
}
VOLUMES = {"name", "configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret"}
NOT_SCHEMA = ("description", "default")


def bare(schema, definition=""):
    """The schema without descriptions, defaults, extensions and dropped fields."""
    made = {}
    for key, value in schema.items():
        if key in NOT_SCHEMA or key.startswith("x-"):
            continue
        if key == "properties":
            dropped = DROPPED.get(definition, set()) | ({"status"} if "kind" in value else set())
            if definition == "io.k8s.api.core.v1.Volume":
                dropped = set(value) - VOLUMES
            made[key] = {name: bare(each) for name, each in sorted(value.items()) if name not in dropped}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            made[key] = bare(value)
        elif key == "$ref":
            made[key] = value.rsplit("/", 1)[-1]
        else:
            made[key] = value
    return made


def references(schema):
    for key, value in schema.items():
        if key == "$ref":
            yield value
        elif isinstance(value, dict):
            yield from references(value)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        published = json.load(file)["definitions"]
    kinds, definitions, wanted = {}, {}, []
    for version, (package, names) in KINDS.items():
        for name in names:
            kinds[version + "/" + name] = package + "." + name
            wanted.append(package + "." + name)
    while wanted:
        name = wanted.pop()
        if name not in definitions:
            definitions[name] = bare(published[name], name)
            wanted.extend(references(definitions[name]))
    lines = ",\n".join("  %s: %s" % (json.dumps(name), json.dumps(definitions[name], sort_keys=True,
                                                                   separators=(",", ":")))
                       for name in sorted(definitions))
    print('{"kubernetes": %s,\n "kinds": %s,\n "definitions": {\n%s\n}}' %
          (json.dumps(sys.argv[2]), json.dumps(kinds, indent=2), lines))


if __name__ == "__main__":
    main()
