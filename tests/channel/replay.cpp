// SPDX-License-Identifier: Apache-2.0
// Repeats runs of the model of the channel (tests/model, README.md, "Traces") with the
// implementation's tables: each action must be possible, and have the same result. Streams are
// simulated: their stores are executed where the run has them.
//
//   gpushm_channel_replay TRACES MOST
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "channel/consumer_table.hpp"
#include "channel/producer_table.hpp"
#include "page_memory.hpp"
#include "sync/timeline_page.hpp"

namespace {

using gpushm::channel::consumer_mode;
using gpushm::channel::consumer_table;
using gpushm::channel::consumer_view;
using gpushm::channel::producer_table;
using gpushm::channel::table_view;
using gpushm_testing::page_memory;
namespace channel = gpushm::channel;
namespace sync = gpushm::sync;

void require(bool holds, const std::string& rule) {
  if (!holds) {
    throw std::runtime_error(rule);
  }
}

struct producer {
  page_memory memory;
  std::optional<producer_table> table;
  std::map<std::uint32_t, producer_table::choice> acquired;  ///< by slot
  std::map<std::uint64_t, producer_table::choice> items;     ///< by number: prepared ones, too

  explicit producer(std::uint32_t slots) : memory(channel::page_bytes(slots)) {}
  [[nodiscard]] sync::timeline_writer timeline(std::uint32_t index) const {
    return {memory.page(), index};
  }
  [[nodiscard]] table_view view() const {
    auto found = table_view::of(memory.page(), memory.table(), memory.table_bytes());
    require(found.has_value(), "the table is not valid");
    return *found;
  }
};

struct consumer {
  page_memory memory{sync::timeline_page_bytes};
  consumer_mode mode;
  consumer_table table;
  bool is_consumer = false;
  bool is_ending = false;  ///< it has left, or is dead: its words end at any moment
  std::map<std::uint64_t, consumer_table::item> used;
  std::uint64_t last = 0;

  explicit consumer(consumer_mode how)
      : mode(how), table(memory.page(), 0, how, how == consumer_mode::latest ? 1 : 0) {
    for (std::uint32_t word = 0; word != channel::first_held_timeline + 1; ++word) {
      sync::timeline_writer(memory.page(), word).reset(0);
    }
  }
  [[nodiscard]] sync::timeline_writer timeline(std::uint32_t index) const {
    return {memory.page(), index};
  }
  [[nodiscard]] bool counts() const { return is_consumer && !is_ending; }
};

/// One run.
class replay {
 public:
  replay(std::uint32_t slots, std::size_t block, std::size_t latest, unsigned late)
      : shape_{slots, 8, 8, 1}, contents_(slots) {
    producers_.push_back(std::make_unique<producer>(slots));
    producers_[0]->table.emplace(
        producers_[0]->memory.page(), producers_[0]->memory.table(), shape_);
    for (std::size_t c = 0; c != block + latest; ++c) {
      consumers_.push_back(
          std::make_unique<consumer>(c < block ? consumer_mode::block : consumer_mode::latest));
      if ((late >> c & 1U) == 0) {
        join(c, 1);
      }
    }
  }

  void execute(const std::string& action, std::istringstream& words) {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    if (action == "end" || action == "kill") {
      std::string whose;
      words >> whose;
      words >> a;
      if (action == "kill") {
        if (whose == "consumer") {
          consumers_.at(a)->is_ending = true;
        }
        return;  // the run no longer has actions of dead processes
      }
      if (whose == "consumer") {
        end_consumer(a);
      } else {
        words >> b;
        end_word(
            a, whose == "announced" ? channel::announced_timeline : channel::published_timeline, b);
      }
      return;
    }
    words >> a >> b;
    if (action == "acquire") {
      acquire(static_cast<std::uint32_t>(a));
    } else if (action == "prepare") {
      const std::array<std::byte, 1> number{static_cast<std::byte>(a)};
      const auto what = now().acquired.at(static_cast<std::uint32_t>(b));
      require(now().table->prepare(what, number) == a, "another item");
      now().items.insert_or_assign(a, what);
    } else if (action == "refuse") {
      now().table->withdraw(now().items.at(a));
      now().table->abandon(now().items.at(a));
      now().acquired.erase(now().items.at(a).slot);
    } else if (action == "announce") {
      const auto what = now().items.at(a);
      now().table->announce(what);
      now().acquired.erase(what.slot);
      contents_[what.slot].announced.push_back(a);
    } else if (action == "publish") {
      publish(a);
    } else if (action == "join") {
      join(a, b);
    } else if (action == "take" || action == "hold") {
      take(a, b);
    } else if (action == "release") {
      release(a, b);
    } else if (action == "takeover") {
      take_over(a);
    } else if (action == "attach") {
      attach(a, b);
    } else if (action == "leave") {
      consumers_.at(a)->is_ending = true;
    } else {
      // `pass` and `retry` leave no trace; `close` is followed by `end`.
      require(action == "pass" || action == "retry" || action == "close",
              "unknown action " + action);
    }
  }

 private:
  [[nodiscard]] producer& now() const { return *producers_.back(); }

  void acquire(std::uint32_t slot) {
    const auto choice = now().table->choose();
    require(choice.has_value() && !now().acquired.contains(slot), "no slot");
    // Between its choice and its acquisition, a consumer of the newest may have released an older
    // slot.
    const auto wanted =
        choice->slot == slot ? choice : std::optional(producer_table::choice{slot, 0});
    if (!now().table->acquire(*wanted)) {
      // The words of a consumer that has gone may have ended meanwhile: the run does not say when.
      for (const auto& each : consumers_) {
        if (each->is_ending) {
          end_words(*each);
        }
      }
      require(now().table->acquire(*wanted), "the slot is held");
    }
    require(choice->slot != slot || choice->after == contents_[slot].announced.back(),
            "other items must be released before");
    now().acquired.insert_or_assign(slot, *wanted);
    for (const auto& each : consumers_) {
      // The producer's CPU has waited for theirs.
      require(!each->counts() || each->mode == consumer_mode::latest ||
                  sync::releases(each->timeline(channel::taken_timeline).reader().word().load(),
                                 wanted->after),
              "a consumer has not taken the item that was in the slot");
    }
  }

  void publish(std::uint64_t number) {
    const auto acquired = now().items.at(number);
    for (const auto& each : consumers_) {
      require(!each->counts() || each->mode == consumer_mode::latest ||
                  sync::releases(each->timeline(channel::released_timeline).reader().word().load(),
                                 acquired.after),
              "the slot is written while a consumer uses it");
      for (const auto& [used, item] : each->used) {
        require(item.slot != acquired.slot || !each->counts() || used > good_,
                "the slot is written while item " + std::to_string(used) + " is read");
      }
    }
    contents_[acquired.slot].item = number;
    require(now().timeline(channel::published_timeline).signal(number) == sync::signal_result::done,
            "`published` does not grow");
    good_ = number;
  }

  void join(std::size_t c, std::uint64_t start) {
    consumer& joins = *consumers_.at(c);
    consumer_view added = member_of(c);
    require(now().table->has_room(added), "there is no room");
    now().table->add(added);
    attach_to(joins, c, start);
    joins.is_consumer = true;
  }
  [[nodiscard]] consumer_view member_of(std::size_t c) const {
    const consumer& consumer = *consumers_.at(c);
    consumer_view result;
    result.id = c + 1;
    result.mode = consumer.mode;
    result.held = consumer.mode == consumer_mode::latest ? 1 : 0;
    result.page = &consumer.memory.page();
    return result;
  }
  void attach_to(consumer& consumer, std::size_t c, std::uint64_t start) {
    const auto replied = now().view().start_of(c + 1);
    require(replied == start, "it starts at another item");
    const std::uint64_t bytes = shape_.slots * shape_.slot_stride;
    require(!now().view().within(shape_.segment, bytes - 1), "the slots do not fit");
    consumer.table.attach(
        now().view().within(shape_.segment, bytes).value(), start, 0, producers_.size());
  }
  void attach(std::size_t c, std::uint64_t start) { attach_to(*consumers_.at(c), c, start); }

  void take(std::size_t c, std::uint64_t number) {
    consumer& who = *consumers_.at(c);
    consumer_table::item item;
    consumer_table::outcome outcome{};
    const auto announced = who.table.producer().timeline(channel::announced_timeline);
    require(announced.read().value() >= number, "it was not announced");
    if (who.mode == consumer_mode::latest || sync::is_terminal(announced.read().word)) {
      // As `announced` was when the consumer read it.
      auto& word = const_cast<std::atomic<std::uint64_t>&>(announced.word());
      const std::uint64_t is = word.exchange(number);
      outcome = who.table.take(item);
      word.store(is);
    } else {
      outcome = who.table.take(item);
    }
    require(outcome == consumer_table::outcome::taken,
            "there is no item: " + std::to_string(static_cast<int>(outcome)));
    require(item.number == number, "another item: " + std::to_string(item.number));
    require(item.metadata_bytes == 1 && std::to_integer<std::uint64_t>(item.metadata[0]) == number,
            "other metadata");
    require(who.mode == consumer_mode::latest || who.last == 0 || number == who.last + 1 ||
                producers_.size() > 1,
            "an item is missing");
    require(number > who.last, "numbers do not grow");
    who.last = number;
    who.used.insert_or_assign(number, item);
  }

  void release(std::size_t c, std::uint64_t number) {
    consumer& who = *consumers_.at(c);
    const auto at = who.used.find(number);
    require(at != who.used.end(), "it does not have that item");
    if (number <= good_ && is_good(number)) {
      require(contents_.at(at->second.slot).item == number, "the slot has another item");
    }
    if (who.mode == consumer_mode::latest) {
      who.memory.page().words[at->second.held_timeline].store(0);
    } else {
      require(who.timeline(channel::released_timeline).signal(number) == sync::signal_result::done,
              "`released` does not grow");
      for (const auto& each : producers_.back()->table->consumers()) {
        require(each.id != c + 1 || now().table->is_plausible(each), "it would be dropped");
      }
    }
    who.used.erase(at);
  }
  /// Items that the dead producer announced and did not complete are not.
  [[nodiscard]] bool is_good(std::uint64_t number) const {
    return number <= last_good_ || number > last_announced_ || producers_.size() == 1;
  }

  static void end_words(const consumer& consumer) {
    for (std::uint32_t word = 0; word != channel::first_held_timeline + 1; ++word) {
      consumer.timeline(word).close(sync::word_kind::ended);
    }
  }
  void end_consumer(std::size_t c) {
    consumer& who = *consumers_.at(c);
    end_words(who);
    for (const auto& each : producers_) {
      each->table->drop(c + 1);
    }
    who.is_consumer = false;
  }

  void end_word(std::size_t which, std::uint32_t word, std::uint64_t last) {
    auto writer = producers_.at(which)->timeline(word);
    writer.close(sync::word_kind::ended);
    require(writer.reader().read().value() == last, "another last value");
  }

  void take_over(std::uint64_t first) {
    const table_view previous = now().view();
    last_good_ = previous.last_good();
    last_announced_ = previous.timeline(channel::announced_timeline).read().value().value_or(0);
    producers_.push_back(std::make_unique<producer>(shape_.slots));
    now().table.emplace(now().memory.page(), now().memory.table(), shape_, previous);
    require(now().table->announced() + 1 == first, "it begins with another item");
    for (content& each : contents_) {
      while (each.announced.back() > last_good_) {
        each.announced.pop_back();
      }
    }
    for (std::size_t c = 0; c != consumers_.size(); ++c) {
      if (consumers_[c]->is_consumer) {
        now().table->add(member_of(c));
      }
    }
  }

  struct content {
    std::uint64_t item = 0;
    std::vector<std::uint64_t> announced{0};
  };
  const producer_table::shape shape_;
  std::vector<std::unique_ptr<producer>> producers_;
  std::vector<std::unique_ptr<consumer>> consumers_;
  std::vector<content> contents_;  ///< of the slots, as complete items
  std::uint64_t good_ = 0;
  std::uint64_t last_good_ = 0;
  std::uint64_t last_announced_ = 0;
};

/// `-DNAME=VALUE` in a line, or the model's default.
std::uint32_t macro(const std::string& line, const std::string& name, std::uint32_t otherwise) {
  const std::string key = "-D" + name + "=";
  const auto at = line.find(key);
  return at == std::string::npos
             ? otherwise
             : static_cast<std::uint32_t>(std::stoul(line.substr(at + key.size())));
}

int run(const char* path, std::size_t most) {
  std::ifstream traces(path);
  std::optional<replay> current;
  std::string begun;
  std::size_t runs = 0;
  std::size_t actions = 0;
  for (std::string line; std::getline(traces, line);) {
    std::istringstream words(line);
    std::string action;
    words >> action;
    try {
      if (action == "run") {
        begun = line;
        ++runs;
        current.emplace(macro(line, "N", 3),
                        macro(line, "BLOCK", 1),
                        macro(line, "LATEST", 1),
                        macro(line, "LATE", 0));
      } else {
        ++actions;
        current.value().execute(action, words);
      }
    } catch (const std::exception& why) {
      std::fprintf(stderr, "%s: %s: %s\n", begun.c_str(), line.c_str(), why.what());
      return 1;
    }
  }
  std::printf("replay: %zu runs, %zu actions\n", runs, actions);
  return runs * 2 < most ? 1 : 0;  // spin could not execute some of them
}

}  // namespace

int main(int argc, char** argv) {
  return argc == 3 ? run(argv[1], std::stoul(argv[2])) : 2;
}
