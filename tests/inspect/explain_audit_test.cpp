// SPDX-License-Identifier: Apache-2.0
// Records of the kernel's audit in logs: each is judged by its own fields, however the text was
// printed, wrapped and mixed with others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/explain/audit.hpp"
#include "inspect/explain/clean.hpp"
#include "inspect/explain/explain.hpp"

namespace gpushm::inspect {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::string node =
    "type=AVC msg=audit(1700000000.100:35): avc:  denied  { read write } for  pid=4711 "
    "comm=\"python\" name=\"nvidia0\" dev=\"devtmpfs\" ino=900 "
    "scontext=system_u:system_r:container_t:s0:c1,c2 "
    "tcontext=system_u:object_r:xserver_misc_device_t:s0 tclass=chr_file permissive=0";
const std::string allowed_node =
    "type=AVC msg=audit(1700000000.050:34): avc:  denied  { read write } for  pid=4710 "
    "comm=\"nvidia-smi\" name=\"nvidia1\" dev=\"devtmpfs\" ino=901 "
    "scontext=system_u:system_r:container_t:s0:c1,c2 "
    "tcontext=system_u:object_r:device_t:s0 tclass=chr_file permissive=1";
const std::string directory =
    "type=AVC msg=audit(1700000000.200:36): avc:  denied  { write } for  pid=4712 comm=\"app\" "
    "name=\"socket\" dev=\"tmpfs\" ino=901 scontext=system_u:system_r:container_t:s0:c1,c2 "
    "tcontext=system_u:object_r:var_run_t:s0 tclass=sock_file permissive=0";
const std::string broker =
    "audit: type=1400 audit(1700000000.300:37): avc:  denied  { connectto } for  pid=1 "
    "comm=\"app\" path=\"/run/gpushm/d/default/socket\" "
    "scontext=system_u:system_r:container_t:s0:c1,c2 "
    "tcontext=system_u:system_r:unconfined_service_t:s0 tclass=unix_stream_socket permissive=1";
const std::string pidfd =
    "audit: type=1326 audit(1700000000.400:38): auid=4294967295 uid=0 gid=0 ses=4294967295 "
    "subj=kernel pid=9 comm=\"python\" exe=\"/usr/bin/python3\" sig=0 arch=c000003e syscall=438 "
    "compat=0 ip=0x7f1234567890 code=0x50000";
const std::string mbind =
    "type=SECCOMP msg=audit(1700000000.500:39): auid=4294967295 uid=0 gid=0 ses=4294967295 pid=10 "
    "comm=\"train\" exe=\"/usr/bin/train\" sig=0 arch=c000003e syscall=237 compat=0 "
    "ip=0x7f1234567891 code=0x50000";
const std::string open_denied =
    "audit: type=1400 audit(1700000000.600:40): apparmor=\"DENIED\" operation=\"open\" "
    "class=\"file\" profile=\"docker-default\" name=\"/dev/nvidia0\" pid=9 comm=\"python\" "
    "requested_mask=\"wr\" denied_mask=\"wr\" fsuid=0 ouid=0";
const std::string ptrace_denied =
    "audit[4713]: AVC apparmor=\"DENIED\" operation=\"ptrace\" class=\"ptrace\" "
    "profile=\"docker-default\" pid=11 comm=\"ucx\" requested_mask=\"trace\" denied_mask=\"trace\" "
    "peer=\"docker-default\"";

/// "rule/first cause" of each explanation, in the order of the rules' names.
std::vector<std::string> first_causes(std::string_view text) {
  std::vector<std::string> result;
  for (const explanation& each : explain(text)) {
    result.push_back(each.rule + "/" + each.causes.at(0).id);
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines(1);
  for (const char c : clean(text).text) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += c;
    }
  }
  return lines;
}

std::string wrapped_at(std::string_view text, std::size_t columns, std::string_view end) {
  std::string result;
  for (; text.size() > columns; text.remove_prefix(columns)) {
    result += std::string(text.substr(0, columns)) + std::string(end);
  }
  return result + std::string(text);
}

/// As a mail program does: between words.
std::string filled_to(std::string_view text, std::size_t columns) {
  std::string result;
  std::size_t used = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (used != 0) {
      const bool fits = used + 1 + end <= columns;
      result += fits ? ' ' : '\n';
      used = fits ? used + 1 : 0;
    }
    result += text.substr(0, end);
    used += end;
    text.remove_prefix(std::min(text.find_first_not_of(' ', end), text.size()));
  }
  return result;
}

TEST(explain_audit, conditions_of_one_record_do_not_look_at_its_neighbours) {
  EXPECT_THAT(first_causes(node), ElementsAre("selinux-device/label-of-container"));
  EXPECT_THAT(first_causes(allowed_node), ElementsAre("selinux-device/permissive"));
  EXPECT_THAT(first_causes(directory), ElementsAre("selinux-socket/label-of-directory"));
  EXPECT_THAT(first_causes(broker), ElementsAre("selinux-socket/permissive"));
  for (const std::string& text : {node + "\n" + broker, broker + "\n" + node}) {
    EXPECT_THAT(first_causes(text),
                ElementsAre("selinux-device/label-of-container", "selinux-socket/permissive"))
        << text;
  }
  for (const std::string& text :
       {directory + "\n" + allowed_node, allowed_node + "\n" + directory}) {
    EXPECT_THAT(first_causes(text),
                ElementsAre("selinux-device/permissive", "selinux-socket/label-of-directory"))
        << text;
  }
}

TEST(explain_audit, first_record_of_a_rule_is_explained_by_its_own_call) {
  EXPECT_THAT(first_causes(pidfd + "\n" + mbind), ElementsAre("seccomp-audit/pidfd"));
  EXPECT_THAT(first_causes(mbind + "\n" + pidfd), ElementsAre("seccomp-audit/other-call"));
  EXPECT_THAT(first_causes(open_denied + "\n" + ptrace_denied),
              ElementsAre("apparmor-denied/profile"));
  EXPECT_THAT(first_causes(ptrace_denied + "\n" + open_denied),
              ElementsAre("apparmor-denied/ptrace"));
  for (const std::string& text : {mbind + "\n" + pidfd, mbind + " " + pidfd}) {
    const auto explanations = explain(text);
    ASSERT_THAT(explanations, SizeIs(1)) << text;
    for (const cause& each : explanations[0].causes) {
      EXPECT_THAT(each.evidence, IsEmpty()) << each.id;
    }
  }
}

TEST(explain_audit, access_that_was_allowed_does_not_hide_one_that_was_denied) {
  for (const std::string& text : {allowed_node + "\n" + node, node + "\n" + allowed_node}) {
    const auto explanations = explain(text);
    ASSERT_THAT(explanations, SizeIs(1)) << text;
    EXPECT_EQ(explanations[0].causes.at(0).id, "label-of-container");
    EXPECT_EQ(explanations[0].line_number, text.starts_with(node) ? 1U : 2U);
  }
  std::string logged = pidfd;
  logged.replace(logged.find("0x50000"), 7, "0x7ffc0000");
  EXPECT_THAT(first_causes(logged), ElementsAre("seccomp-audit/only-logged"));
  EXPECT_THAT(first_causes(logged + "\n" + mbind), ElementsAre("seccomp-audit/other-call"));
  const std::string file =
      "avc:  denied  { read } for  pid=9 comm=\"python\" name=\"model.safetensors\" "
      "scontext=system_u:system_r:container_t:s0 tcontext=unconfined_u:object_r:user_home_t:s0 "
      "tclass=file permissive=1";
  EXPECT_THAT(first_causes(file), ElementsAre("selinux-file/permissive"));
}

TEST(explain_audit, records_on_one_line_are_separate) {
  // A collector's JSON, whose message has several lines; and a log that was joined.
  for (const std::string& between : {std::string("\\n"), std::string(" "), std::string(" | ")}) {
    for (const bool turned : {false, true}) {
      const std::string& one = turned ? broker : node;
      const std::string& two = turned ? node : broker;
      EXPECT_THAT(first_causes("{\"log\": \"" + one + between + two + "\"}"),
                  ElementsAre("selinux-device/label-of-container", "selinux-socket/permissive"))
          << between << turned;
    }
  }
  // Without headers, as a part of a message.
  const auto without_header = [](const std::string& record) {
    return record.substr(record.find("avc:"));
  };
  EXPECT_THAT(first_causes(without_header(broker) + " " + without_header(node)),
              ElementsAre("selinux-device/label-of-container", "selinux-socket/permissive"));
}

TEST(explain_audit, wrapped_records_are_read_at_any_width) {
  for (const std::string* record :
       {&node, &allowed_node, &directory, &broker, &pidfd, &mbind, &open_denied, &ptrace_denied}) {
    const auto expected = first_causes(*record);
    ASSERT_THAT(expected, SizeIs(1));
    EXPECT_EQ(first_causes(wrapped_at(*record, 80, "\n    ")), expected);
    for (std::size_t columns = 60; columns < 220; ++columns) {
      EXPECT_EQ(first_causes(wrapped_at(*record, columns, "\n")), expected) << columns;
      EXPECT_EQ(first_causes(filled_to(*record, columns)), expected) << columns;
    }
  }
  for (std::size_t columns = 60; columns < 220; ++columns) {
    for (const bool turned : {false, true}) {
      const std::string& one = turned ? broker : node;
      const std::string& two = turned ? node : broker;
      EXPECT_THAT(
          first_causes(wrapped_at(one, columns, "\n") + "\n" + wrapped_at(two, columns, "\n")),
          ElementsAre("selinux-device/label-of-container", "selinux-socket/permissive"))
          << columns << turned;
    }
  }
}

TEST(explain_audit, other_lines_are_not_a_part_of_a_record) {
  const std::string other =
      "time=\"2026-11-30T04:00:00Z\" level=error msg=\"permissive=1 syscall=438\" pid=4711\n"
      "RuntimeError: connectto: permissive=1, operation=\"ptrace\"\n"
      "type=SYSCALL msg=audit(1700000000.200:36): arch=c000003e syscall=438 success=no exit=-13 "
      "pid=4712 comm=\"app\" exe=\"/app\"\n"
      "type=PROCTITLE msg=audit(1700000000.200:36): proctitle=2F617070\n"
      "----\n";
  for (const std::string* record : {&node, &directory, &mbind, &open_denied}) {
    const auto expected = first_causes(*record);
    EXPECT_THAT(first_causes(other + *record), Contains(expected.at(0)));
    EXPECT_THAT(first_causes(*record + "\n" + other), Contains(expected.at(0)));
    EXPECT_THAT(first_causes(other + *record + "\n" + other), Contains(expected.at(0)));
    const auto lines = lines_of(*record + "\n" + other);
    EXPECT_THAT(lines, SizeIs(7));
    EXPECT_THAT(lines.at(0), Not(HasSubstr("level=error")));
  }
  // A record of an old kernel, which has no permissive=, and a line that has a field it has.
  const std::string old = node.substr(0, node.find(" permissive="));
  EXPECT_THAT(lines_of(old + "\npid=1 was killed\nname of the model: a"), SizeIs(3));
}

TEST(explain_audit, places_of_records_are_those_of_the_text) {
  const std::string filled = filled_to(broker, 80);
  const auto lines = static_cast<std::size_t>(std::count(filled.begin(), filled.end(), '\n')) + 1;
  const auto explanations =
      explain("first\n" + filled + "\n[ 12.5] host kernel: " + node + "\nlast");
  ASSERT_THAT(explanations, SizeIs(2));
  for (const explanation& each : explanations) {
    EXPECT_EQ(each.line_number, each.rule == "selinux-socket" ? 2U : 2U + lines) << each.rule;
  }
  EXPECT_THAT(audit_records_in("kernel: audit: type=1400 audit(1.2:3): avc: denied { open }"),
              ElementsAre(8));
  EXPECT_THAT(audit_records_in("avc: denied { a } avc: granted { b }"), ElementsAre(0, 18));
  EXPECT_THAT(audit_records_in("type=SECCOMP msg=audit(1.2:3): pid=1 avc: denied { a }"),
              ElementsAre(0, 37));
  EXPECT_THAT(audit_records_in("audit[12]: AVC apparmor=\"DENIED\" apparmor=\"DENIED\""),
              ElementsAre(0, 33));
  for (const char* text : {"",
                           "audit",
                           "mytype=AVC msg=audit(",
                           "type= msg=audit(1)",
                           "audit[]: AVC",
                           "savc: denied",
                           "type=AVC",
                           "the audit log: denied"}) {
    EXPECT_FALSE(has_audit_record(text)) << text;
  }
}

}  // namespace
}  // namespace gpushm::inspect
