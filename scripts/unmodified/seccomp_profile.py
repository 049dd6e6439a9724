# SPDX-License-Identifier: Apache-2.0
"""Writes the `linux.seccomp` of a container without capabilities from the profile of container
engines, to standard output.

    seccomp_profile.py /usr/share/containers/seccomp.json

`pidfd_getfd` is taken out of what is allowed: the profiles of containerd and Docker allow it only
with CAP_SYS_PTRACE.
"""

import json
import sys

HERE = {"amd64", "x32", "x86"}


def applies(rule):
    wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
    if wanted.get("caps"):
        return False
    if wanted.get("arches") and not HERE & set(wanted["arches"]):
        return False
    return not HERE & set(unwanted.get("arches") or [])


def main():
    with open(sys.argv[1]) as file:
        profile = json.load(file)
    rules = []
    for rule in profile["syscalls"]:
        if not applies(rule):
            continue
        names = [
            name
            for name in rule["names"]
            if not (name == "pidfd_getfd" and rule["action"] == "SCMP_ACT_ALLOW")
        ]
        if not names:
            continue
        kept = {"names": names, "action": rule["action"]}
        if rule.get("args"):
            kept["args"] = rule["args"]
        if rule["action"] == "SCMP_ACT_ERRNO" and rule.get("errnoRet") is not None:
            kept["errnoRet"] = rule["errnoRet"]
        rules.append(kept)
    rules.append({"names": ["pidfd_getfd"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1})
    json.dump(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": profile.get("defaultErrnoRet", 38),
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": rules,
        },
        sys.stdout,
        indent=1,
    )


if __name__ == "__main__":
    main()
