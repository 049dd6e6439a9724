// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/resources/gpu_choice.hpp"

#include <algorithm>
#include <optional>

namespace gpushm::device_plugin {

namespace {

using places = std::vector<std::size_t>;

// Stops counting above max_combinations.
std::uint64_t combinations(std::size_t total, std::size_t count) {
  std::uint64_t number = 1;
  count = std::min(count, total - count);
  for (std::size_t i = 1; i <= count; ++i) {
    number = number * (total - count + i) / i;
    if (number > max_combinations) {
      return number;
    }
  }
  return number;
}

/// Searches for the best set. The cut is the members' closeness to all GPUs minus twice their
/// closeness to each other, so the score is computed incrementally as the set grows.
class search {
 public:
  search(const closeness_table& closeness,
         const places& candidates,
         const places& taken,
         std::size_t count)
      : closeness_(closeness),
        candidates_(candidates),
        taken_(taken),
        count_(count),
        with_all_(closeness.size(), 0) {
    for (const std::size_t a : candidates_) {
      add_rows(a);
    }
    for (const std::size_t a : taken_) {
      add_rows(a);
    }
  }

  places try_all() {
    members_ = taken_;
    const state start = state_of_taken();
    descend(0, start);
    return best_;
  }

  places grow_from_each() {
    if (!taken_.empty()) {
      grow({});
      return best_;
    }
    for (const std::size_t seed : candidates_) {
      grow(seed);
    }
    return best_;
  }

 private:
  struct state {
    std::uint64_t inside = 0;
    std::uint64_t with_all = 0;
  };

  void add_rows(std::size_t a) {
    for (const auto* others : {&candidates_, &taken_}) {
      for (const std::size_t b : *others) {
        with_all_[a] += a == b ? 0 : closeness_[a][b];
      }
    }
  }

  [[nodiscard]] state state_of_taken() const {
    state start;
    for (std::size_t i = 0; i < taken_.size(); ++i) {
      start.with_all += with_all_[taken_[i]];
      for (std::size_t j = 0; j < i; ++j) {
        start.inside += closeness_[taken_[i]][taken_[j]];
      }
    }
    return start;
  }

  void consider(const state& now) {
    const choice_score score{now.inside, now.with_all - 2 * now.inside};
    if (!best_score_ || score.better_than(*best_score_)) {
      best_score_ = score;
      best_.assign(members_.begin() + static_cast<std::ptrdiff_t>(taken_.size()), members_.end());
    }
  }

  void descend(std::size_t first, const state& now) {
    const std::size_t missing = taken_.size() + count_ - members_.size();
    if (missing == 0) {
      consider(now);
      return;
    }
    for (std::size_t i = first; i + missing <= candidates_.size(); ++i) {
      const std::size_t next = candidates_[i];
      state more{now.inside, now.with_all + with_all_[next]};
      for (const std::size_t member : members_) {
        more.inside += closeness_[member][next];
      }
      members_.push_back(next);
      descend(i + 1, more);
      members_.pop_back();
    }
  }

  // Closeness of a GPU, member or not, to the members.
  [[nodiscard]] std::uint64_t with_members(std::size_t gpu) const { return gains_[gpu]; }

  void join(std::size_t gpu) {
    members_.push_back(gpu);
    is_member_[gpu] = 1;
    for (const std::size_t each : candidates_) {
      gains_[each] += each == gpu ? 0 : closeness_[gpu][each];
    }
  }

  void grow(std::optional<std::size_t> seed) {
    members_.clear();
    gains_.assign(closeness_.size(), 0);
    is_member_.assign(closeness_.size(), 0);
    for (const std::size_t each : taken_) {
      join(each);
    }
    if (seed) {
      join(*seed);
    }
    while (members_.size() < taken_.size() + count_) {
      std::optional<std::size_t> closest;
      for (const std::size_t each : candidates_) {
        if (is_member_[each] == 0 &&
            (!closest || gains_[each] > gains_[*closest] ||
             (gains_[each] == gains_[*closest] && with_all_[each] < with_all_[*closest]))) {
          closest = each;
        }
      }
      join(*closest);
    }
    exchange();
    state end = {};
    for (std::size_t i = 0; i < members_.size(); ++i) {
      end.with_all += with_all_[members_[i]];
      for (std::size_t j = 0; j < i; ++j) {
        end.inside += closeness_[members_[i]][members_[j]];
      }
    }
    consider(end);
  }

  void exchange() {
    bool changed = true;
    for (int round = 0; changed && round < 8; ++round) {
      changed = false;
      for (std::size_t i = taken_.size(); i < members_.size(); ++i) {
        for (const std::size_t in : candidates_) {
          const std::size_t out = members_[i];
          if (is_member_[in] != 0 || with_members(in) <= with_members(out) + closeness_[in][out]) {
            continue;
          }
          is_member_[out] = 0;
          is_member_[in] = 1;
          members_[i] = in;
          for (const std::size_t each : candidates_) {
            gains_[each] += each == in ? 0 : closeness_[in][each];
            gains_[each] -= each == out ? 0 : closeness_[out][each];
          }
          changed = true;
        }
      }
    }
  }

  const closeness_table& closeness_;
  const places& candidates_;
  const places& taken_;
  std::size_t count_;
  std::vector<std::uint64_t> with_all_;  ///< by GPU: its closeness to all others
  places members_;                       ///< those taken first
  std::vector<std::uint64_t> gains_;
  std::vector<char> is_member_;
  std::optional<choice_score> best_score_;
  places best_;
};

}  // namespace

choice_score score_of(const closeness_table& closeness,
                      const places& chosen,
                      const places& candidates,
                      const places& taken) {
  places inside = taken;
  inside.insert(inside.end(), chosen.begin(), chosen.end());
  choice_score score;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      score.inside += closeness[inside[i]][inside[j]];
    }
    for (const std::size_t other : candidates) {
      if (std::find(chosen.begin(), chosen.end(), other) == chosen.end()) {
        score.cut += closeness[inside[i]][other];
      }
    }
  }
  return score;
}

places choose_gpus(const closeness_table& closeness,
                   places candidates,
                   const places& taken,
                   std::size_t count) {
  std::sort(candidates.begin(), candidates.end());
  search best(closeness, candidates, taken, count);
  places chosen = combinations(candidates.size(), count) <= max_combinations
                      ? best.try_all()
                      : best.grow_from_each();
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace gpushm::device_plugin
