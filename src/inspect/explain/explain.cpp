// SPDX-License-Identifier: Apache-2.0
#include "inspect/explain/explain.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/text.hpp"
#include "inspect/explain/match.hpp"
#include "inspect/explain/rules.hpp"

namespace gpushm::inspect {

namespace {

struct named_fact {
  std::string_view name;
  std::string_view words;  ///< as evidence
  bool (*holds)(const facts&);
};

template <typename Test>
bool any_gpu(const facts& all, Test test) {
  return std::any_of(all.gpus.begin(), all.gpus.end(), test);
}

bool nearly_full(const gpu_facts& gpu) {
  return gpu.nvml && gpu.nvml->total_bytes > 0 && gpu.nvml->free_bytes < gpu.nvml->total_bytes / 20;
}

constexpr std::array<named_fact, 16> known_facts{{
    {"in-container",
     "this process is in a container",
     [](const facts& all) { return !all.self.container.runtime.empty(); }},
    {"in-pod",
     "this process is in a pod",
     [](const facts& all) {
       return !all.self.container.pod_uid.empty() || !all.self.container.pod_name.empty();
     }},
    // The PID of `gpushm explain` itself is irrelevant: it is not the program that failed.
    {"own-pid-namespace",
     "this PID namespace is private: its main program is PID 1, like the other container's",
     [](const facts& all) {
       const auto found = all.self.namespaces.find("pid");
       return found != all.self.namespaces.end() && found->second.host == false;
     }},
    {"gvisor", "this is a gVisor sandbox", [](const facts& all) { return all.gvisor; }},
    {"several-gpus",
     "this machine has several GPUs",
     [](const facts& all) { return all.gpus.size() > 1; }},
    {"no-gpus", "no GPU is visible here", [](const facts& all) { return all.gpus.empty(); }},
    {"some-gpus-hidden",
     "this process may not open some of the GPUs here",
     [](const facts& all) {
       return any_gpu(all, [](const gpu_facts& gpu) { return gpu.open_error.value_or(0) != 0; });
     }},
    {"mig",
     "a GPU here is in MIG mode",
     [](const facts& all) {
       return any_gpu(all, [](const gpu_facts& gpu) { return gpu.sharing == "mig"; });
     }},
    {"mps", "an MPS daemon runs here", [](const facts& all) { return all.mps; }},
    {"vgpu",
     "a GPU here is virtual",
     [](const facts& all) {
       return any_gpu(all, [](const gpu_facts& gpu) { return gpu.sharing == "vgpu"; });
     }},
    {"no-module",
     "no NVIDIA kernel module is visible here",
     [](const facts& all) { return all.module_version.empty(); }},
    {"small-shm",
     "/dev/shm here has 64 MiB or less",
     [](const facts& all) { return all.shm_bytes > 0 && all.shm_bytes <= 64UL * 1024 * 1024; }},
    {"no-imex",
     "there is no IMEX channel here",
     [](const facts& all) { return all.imex_channels.empty(); }},
    {"xids", "the kernel log has Xid lines", [](const facts& all) { return !all.xids.empty(); }},
    {"hides-devices",
     "CUDA_VISIBLE_DEVICES is set here",
     [](const facts& all) { return all.self.variables.count("CUDA_VISIBLE_DEVICES") > 0; }},
    {"memory-full",
     "a GPU here has less than 5% of its memory free",
     [](const facts& all) { return any_gpu(all, nearly_full); }},
}};

constexpr std::array<std::string_view, known_facts.size()> make_names_of_facts() {
  std::array<std::string_view, known_facts.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = known_facts[i].name;
  }
  return names;
}
constexpr auto names_of_facts = make_names_of_facts();

// ---- which rules ----

/// Maximum matches per pattern: logs repeat themselves.
constexpr std::size_t max_places = 16;

enum class strength { specific, vague, number };

struct match {
  const explain_rule* rule = nullptr;
  strength how = strength::specific;
  explain_text::place where;
};

void add_places(std::vector<match>& matches,
                const explain_rule& rule,
                strength how,
                const explain_text& text,
                std::string_view pattern) {
  const std::string lower = lower_case(pattern);
  auto where = text.find_phrase(lower);
  for (std::size_t i = 0; where && i < max_places; ++i) {
    matches.push_back({&rule, how, *where});
    where = text.find_phrase(lower, where->end);
  }
}

std::vector<match> all_matches(const explain_text& text) {
  std::vector<match> matches;
  for (const explain_rule& rule : explain_rules()) {
    for (const std::string& name : rule.names) {
      add_places(matches, rule, strength::specific, text, name);
    }
    for (const std::string& phrase : rule.phrases) {
      add_places(matches, rule, rule.vague ? strength::vague : strength::specific, text, phrase);
    }
    for (const std::string& only : rule.alone) {
      if (text.is_only(lower_case(only))) {
        matches.push_back({&rule, strength::specific, text.whole()});
      }
    }
    for (const int number : rule.numbers) {
      if (const auto where = text.find_number(number)) {
        matches.push_back({&rule, strength::number, *where});
      }
    }
  }
  return matches;
}

/// "pidfd_getfd: Operation not permitted" is more specific than "operation not permitted".
bool is_part_of_another(const match& inner, const std::vector<match>& all) {
  return std::any_of(all.begin(), all.end(), [&](const match& outer) {
    return outer.rule != inner.rule && outer.where.begin <= inner.where.begin &&
           inner.where.end <= outer.where.end &&
           outer.where.end - outer.where.begin > inner.where.end - inner.where.begin;
  });
}

/// The best match of each rule, the most specific rule first.
std::vector<match> chosen_matches(const explain_text& text) {
  std::vector<match> matches = all_matches(text);
  std::stable_sort(matches.begin(), matches.end(), [](const match& a, const match& b) {
    return a.how != b.how ? a.how < b.how : a.where.begin < b.where.begin;
  });
  const bool specific = !matches.empty() && matches.front().how != strength::number;
  std::vector<match> chosen;
  for (const match& each : matches) {
    const auto same_rule = [&](const match& other) { return other.rule == each.rule; };
    // Numbers occur in any log.
    const bool noise = specific && each.how == strength::number;
    if (!noise && std::none_of(chosen.begin(), chosen.end(), same_rule) &&
        !is_part_of_another(each, matches)) {
      chosen.push_back(each);
    }
  }
  return chosen;
}

// ---- which causes ----

/// The reason why `condition` holds; nullopt if it does not.
std::optional<std::string> evidence_of(const explain_condition& condition,
                                       const explain_text& text,
                                       const situation& here) {
  if (!condition.text.empty()) {
    return text.find_phrase(lower_case(condition.text))
               ? std::optional(fmt::format("the text contains \"{}\"", condition.text))
               : std::nullopt;
  }
  if (!condition.fact.empty()) {
    const auto known =
        std::find_if(known_facts.begin(), known_facts.end(), [&](const named_fact& fact) {
          return fact.name == condition.fact;
        });
    return known != known_facts.end() && here.facts.count(condition.fact) > 0
               ? std::optional(std::string(known->words))
               : std::nullopt;
  }
  for (const check& each : here.checks) {
    if (each.id == condition.check && each.result == condition.result) {
      return fmt::format(
          "{} ({}): {}", each.id, to_string(each.result), base::printable(each.seen));
    }
  }
  return std::nullopt;
}

std::vector<cause> causes_of(const explain_rule& rule,
                             const explain_text& text,
                             const situation& here) {
  std::vector<cause> causes;
  double sum = 0;
  for (const explain_cause& known : rule.causes) {
    cause possible{known.id, known.prior, known.text, known.confirm, known.fix, {}};
    for (const explain_condition& condition : known.when) {
      if (auto words = evidence_of(condition, text, here)) {
        possible.share *= condition.factor;
        if (condition.factor > 1) {
          possible.evidence.push_back(*std::move(words));
        }
      }
    }
    sum += possible.share;
    causes.push_back(std::move(possible));
  }
  for (cause& each : causes) {
    each.share /= sum;
  }
  std::stable_sort(causes.begin(), causes.end(), [](const cause& a, const cause& b) {
    return a.share > b.share;
  });
  return causes;
}

}  // namespace

std::span<const std::string_view> fact_names() {
  return names_of_facts;
}

situation situation_of(const facts& all, std::vector<check> checks) {
  situation here{{}, std::move(checks)};
  for (const named_fact& each : known_facts) {
    if (each.holds(all)) {
      here.facts.emplace(each.name);
    }
  }
  return here;
}

std::vector<explanation> explain(std::string_view raw, const situation& here) {
  const explain_text text(raw);
  std::vector<explanation> all;
  for (const match& each : chosen_matches(text)) {
    all.push_back({each.rule->id,
                   each.rule->title,
                   each.rule->about,
                   text.text(each.where),
                   text.line(each.where),
                   text.line_number(each.where),
                   causes_of(*each.rule, text, here)});
  }
  return all;
}

}  // namespace gpushm::inspect
