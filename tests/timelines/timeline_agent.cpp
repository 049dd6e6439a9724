// SPDX-License-Identifier: Apache-2.0
// A process that uses timelines by commands on standard input, one per line, and answers each with
// one line: "ok ..." or "error CODE TEXT".
#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/text/hex.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/hex.hpp"
#include "tests/support/process/orders.hpp"

namespace {

using namespace gpushm;
using gpushm_testing::order_words;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class agent {
 public:
  agent() {
    add_timeline_orders();
    add_value_orders();
    add_stream_orders();
    add_graph_orders();
    add_segment_orders();
    add_producer_orders();
    add_consumer_orders();
  }

  void run() { orders_.run(); }

 private:
  void add_timeline_orders() {
    orders_.add("pid", [] { return std::to_string(::getpid()); });
    orders_.add("connect", [this](order_words& words) {
      client_.emplace(
          client::connect({.socket_path = words.text(), .timeout = milliseconds(20'000)}));
    });
    orders_.add("create", [this](order_words& words) {
      const std::string name = words.text();
      timelines_.insert_or_assign(name, timeline::create(*client_, name));
    });
    orders_.add("open", [this](order_words& words) {
      const std::string name = words.text();
      timelines_.insert_or_assign(name,
                                  timeline::open(*client_, name, milliseconds(words.number())));
    });
    orders_.add("create_local", [this](order_words& words) {
      timelines_.insert_or_assign(words.text(), timeline::create_local());
    });
    orders_.add("ticket",
                [this](order_words& words) { return base::hex_text(of(words.text()).ticket()); });
    orders_.add("import", [this](order_words& words) {
      const std::string name = words.text();
      timelines_.insert_or_assign(
          name, timeline::from_ticket(gpushm_testing::bytes_of_hex(words.text())));
    });
    // a program that sleeps
    orders_.add("become", [] {
      ::alarm(60);
      ::execlp("sleep", "sleep", "60", nullptr);
      throw error(errc::system_error, "agent", "become", "cannot execute sleep");
    });
    orders_.add("user", [] {
      const bool is_other =
          ::setgroups(0, nullptr) == 0 && ::setgid(65'534) == 0 && ::setuid(65'534) == 0;
      return is_other ? std::string() : "not";
    });
    orders_.add("take_over", [this](order_words& words) {
      timeline& on = of(words.text());
      on = on.take_over(milliseconds(words.number()));
    });
    orders_.add("hand_over", [this](order_words& words) {
      const std::string name = words.text();
      of(name).hand_over();
      timelines_.erase(name);
    });
    orders_.add("close", [this](order_words& words) { timelines_.erase(words.text()); });
  }

  void add_value_orders() {
    orders_.add("signal", [this](order_words& words) {
      timeline& on = of(words.text());
      on.signal(words.number());
    });
    orders_.add("set_flags", [this](order_words& words) {
      timeline& on = of(words.text());
      on.set_flags(words.number());
    });
    orders_.add("value",
                [this](order_words& words) { return std::to_string(of(words.text()).value()); });
    orders_.add("wait", [this](order_words& words) {
      timeline& on = of(words.text());
      const std::uint64_t value = words.number();
      return on.wait(value, milliseconds(words.number())) ? "reached" : "not";
    });
    orders_.add("wait_flags", [this](order_words& words) {
      timeline& on = of(words.text());
      const std::uint64_t flags = words.number();
      return on.wait_flags(flags, milliseconds(words.number())) ? "met" : "not";
    });
    // SIGNALED CLOSED
    orders_.add("signal_and_close", [this](order_words& words) {
      of(words.text()).signal(1);
      timelines_.erase(words.text());
    });
    // COUNT
    orders_.add("create_many", [this](order_words& words) {
      for (std::uint64_t left = words.number(); left != 0; --left) {
        many_.push_back(timeline::create(*client_, "many/" + std::to_string(many_.size())));
      }
    });
    orders_.add("many_signaled", [this] {
      return std::to_string(std::count_if(
          many_.begin(), many_.end(), [](const timeline& each) { return each.value() != 0; }));
    });
    orders_.add("check", [this](order_words& words) { of(words.text()).check(); });
  }

  void add_stream_orders() {
    orders_.add("device", [this](order_words& words) {
      const driver::cuda_driver& cu = driver::cuda_driver::instance();
      cuda::CUcontext context = nullptr;
      must(cu->cuDevicePrimaryCtxRetain(&context, driver::find_device(words.text()).handle));
      must(cu->cuCtxSetCurrent(context));
      add_streams(1);
    });
    orders_.add("reset", [this](order_words& words) {
      must(cu()->cuDevicePrimaryCtxReset_v2(driver::find_device(words.text()).handle));
      streams_.clear();
    });
    orders_.add("streams", [this](order_words& words) { add_streams(words.number()); });
    // synchronizes with the legacy default stream
    orders_.add("blocking_stream", [this] {
      cuda::CUstream added = nullptr;
      must(cu()->cuStreamCreate(&added, cuda::CU_STREAM_DEFAULT));
      streams_.push_back(added);
    });
    orders_.add("stream_signal", [this](order_words& words) {
      void* const stream = stream_at(words.number());
      timeline& on = of(words.text());
      on.signal(stream, words.number());
    });
    orders_.add("stream_wait", [this](order_words& words) {
      void* const stream = stream_at(words.number());
      timeline& on = of(words.text());
      const std::uint64_t value = words.number();
      on.wait(stream, value, milliseconds(words.number()));
    });
    // STREAM [wait|signal|wait_flags|set_flags NAME VALUE]...
    orders_.add("batch", [this](order_words& words) {
      void* const stream = stream_at(words.number());
      stream_batch operations;
      for (std::string kind = words.text(); !kind.empty(); kind = words.text()) {
        timeline& on = of(words.text());
        if (kind == "wait" || kind == "signal") {
          kind == "wait" ? operations.wait(on, words.number())
                         : operations.signal(on, words.number());
        } else {
          kind == "wait_flags" ? operations.wait_flags(on, words.number())
                               : operations.set_flags(on, words.number());
        }
      }
      operations.enqueue(stream, milliseconds(0));
    });
    orders_.add("sync", [this](order_words& words) {
      must(cu()->cuStreamSynchronize(handle_at(words.number())));
    });
    orders_.add("query", [this](order_words& words) {
      return cu()->cuStreamQuery(handle_at(words.number())) == cuda::CUDA_SUCCESS ? "idle" : "busy";
    });
    orders_.add("waiting", [] {
      const auto now = waiting_streams::now();
      return std::to_string(now.waiting) + " " + std::to_string(now.limit) + " " +
             std::to_string(now.connections);
    });
    // FIRST MINE OTHER COUNT: signals and waits on stream 0
    orders_.add("rounds", [this](order_words& words) {
      const bool first = words.number() != 0;
      timeline& mine = of(words.text());
      timeline& other = of(words.text());
      const std::uint64_t count = words.number();
      const std::uint64_t from = mine.value();
      const auto begin = steady_clock::now();
      for (std::uint64_t i = from + 1; i <= from + count; ++i) {
        if (first) {
          mine.signal(stream_at(0), i);
          other.wait(stream_at(0), i);
        } else {
          other.wait(stream_at(0), i);
          mine.signal(stream_at(0), i);
        }
      }
      must(cu()->cuStreamSynchronize(handle_at(0)));
      const std::chrono::duration<double, std::micro> took = steady_clock::now() - begin;
      mine.check();
      other.check();
      return std::to_string(took.count() / static_cast<double>(count));
    });
  }

  void add_graph_orders() {
    // NAME VALUE: on stream 0, captured or not
    orders_.add("record", [this](order_words& words) {
      timeline& on = of(words.text());
      static_cast<void>(stream_batch().wait(on, words.number()).record(stream_at(0)));
    });
    orders_.add("capture", [this] {
      must(cu()->cuStreamBeginCapture_v2(handle_at(0), cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    });
    orders_.add("end_capture", [this] {
      cuda::CUgraph graph = nullptr;
      must(cu()->cuStreamEndCapture(handle_at(0), &graph));
      must(cu()->cuGraphDestroy(graph));
    });
    // NAME VALUE: launched by "launch"
    orders_.add("capture_signal", [this](order_words& words) {
      timeline& on = of(words.text());
      const std::uint64_t value = words.number();
      on.prepare(stream_at(0));
      executable_ = capture([&] { on.signal(stream_at(0), value); });
    });
    // NAME VALUE: set by "set", launched by "launch"
    orders_.add("record_signal", [this](order_words& words) {
      timeline& on = of(words.text());
      const std::uint64_t value = words.number();
      on.prepare(stream_at(0));
      executable_ =
          capture([&] { recorded_ = stream_batch().signal(on, value).record(stream_at(0)); });
    });
    // VALUE
    orders_.add("set", [this](order_words& words) {
      const std::uint64_t value = words.number();
      recorded_.set(executable_, stream_at(0), std::span(&value, 1), milliseconds(0));
    });
    orders_.add("launch", [this] { launch(executable_); });
    // produce|consume values|flags MINE OTHER SEGMENT COUNT
    orders_.add("graph_rounds", [this](order_words& words) {
      const bool produces = words.text() == "produce";
      const bool uses_values = words.text() == "values";
      timeline& mine = of(words.text());
      timeline& other = of(words.text());
      segment& on = segments_.at(words.text());
      const std::uint64_t count = words.number();
      return uses_values ? rounds_of_values(produces, mine, other, on, count)
                         : rounds_of_flags(produces, mine, other, on, count);
    });
  }

  void add_segment_orders() {
    orders_.add("segment", [this](order_words& words) {
      const std::string name = words.text();
      const std::uint64_t bytes = words.number();
      segments_.insert_or_assign(
          name,
          client_->create(name, {.size_bytes = bytes, .device = std::to_string(words.number())}));
      segments_.at(name).publish();
    });
    orders_.add("open_segment", [this](order_words& words) {
      const std::string name = words.text();
      segments_.insert_or_assign(
          name,
          client_->open(
              name, {.timeout = milliseconds(20'000), .device = std::to_string(words.number())}));
    });
    // NAME: each operation of a segment that copies
    orders_.add("copies", [this](order_words& words) {
      segment& on = segments_.at(words.text());
      const std::vector<std::byte> written(on.size_bytes() / 2, std::byte{7});
      std::vector<std::byte> got(written.size());
      on.fill(std::byte{1});
      on.write(0, written);
      on.write_from_gpu(got.size(), on.data(), got.size());
      on.read(got.size(), got);
      return got == written ? std::string() : "other bytes";
    });
    // STREAM NAME: the byte that the stream's work has written
    orders_.add("copies_on", [this](order_words& words) {
      void* const stream = stream_at(words.number());
      segment& on = segments_.at(words.text());
      std::vector<std::byte> got(1);
      on.read_on(stream, 0, got);
      on.write_on(stream, 1, got);
      on.write_from_gpu_on(stream, 2, on.data(), 1);
      on.read(2, got);
      const auto read = std::to_string(std::to_integer<int>(got[0]));
      on.fill_on(stream, std::byte{1});
      return read;
    });
    // STREAM NAME BYTE: enqueued
    orders_.add("fill", [this](order_words& words) {
      const auto stream = handle_at(words.number());
      segment& on = segments_.at(words.text());
      must(cu()->cuMemsetD8Async(address_of(on.mutable_data()),
                                 static_cast<unsigned char>(words.number()),
                                 on.size_bytes(),
                                 stream));
    });
    // STREAM NAME: enqueued
    orders_.add("load", [this](order_words& words) {
      const auto stream = handle_at(words.number());
      const segment& on = segments_.at(words.text());
      pin(on.size_bytes());
      must(cu()->cuMemcpyDtoHAsync_v2(
          loaded_.data(), address_of(on.data()), loaded_.size(), stream));
    });
    orders_.add("good_rounds", [this] { return std::to_string(last_good_); });
    orders_.add("loaded", [this] {
      const bool same = std::all_of(
          loaded_.begin(), loaded_.end(), [&](unsigned char each) { return each == loaded_[0]; });
      return same && !loaded_.empty() ? std::to_string(loaded_[0]) : "mixed";
    });
  }

  void add_producer_orders() {
    // NAME SLOTS BYTES GPU
    orders_.add("produce", [this](order_words& words) {
      const std::string name = words.text();
      channel_options options;
      options.slots = static_cast<std::uint32_t>(words.number());
      options.slot_bytes = words.number();
      options.device = words.text();
      producer_ = channel_producer::create(*client_, name, options);
    });
    // COUNT [STREAMS]: each slot is filled with its number, by 1 or more
    orders_.add("publish", [this](order_words& words) {
      const std::uint64_t count = words.number();
      const std::uint64_t streams = std::max<std::uint64_t>(words.number(), 1);
      for (std::uint64_t i = 0; i != count; ++i) {
        const std::uint64_t turn = i % streams;
        auto slot = producer_.acquire(stream_at(turn), milliseconds(60'000));
        if (!slot) {
          throw error(errc::timed_out, "agent", "publish", "no slot");
        }
        const std::uint64_t item = producer_.stats().announced + 1;
        must(cu()->cuMemsetD32Async(address_of(slot->data()),
                                    static_cast<unsigned int>(item),
                                    slot->bytes() / sizeof(unsigned int),
                                    handle_at(turn)));
        slot->publish(std::as_bytes(std::span(&item, 1)));
      }
      return std::to_string(producer_.stats().announced);
    });
    // COUNT: by the CPU, each slot with its number
    orders_.add("fill_items", [this](order_words& words) {
      for (std::uint64_t left = words.number(); left != 0; --left) {
        auto slot = acquire_on_cpu();
        const std::uint64_t item = producer_.stats().announced + 1;
        std::fill_n(
            static_cast<std::uint64_t*>(slot.data()), slot.bytes() / sizeof(std::uint64_t), item);
        slot.publish(std::as_bytes(std::span(&item, 1)));
      }
      return std::to_string(producer_.stats().published);
    });
    // COUNT: stream 0 publishes slots that it does not fill
    orders_.add("announce", [this](order_words& words) {
      for (std::uint64_t left = words.number(); left != 0; --left) {
        auto slot = producer_.acquire(stream_at(0), milliseconds(20'000));
        if (!slot) {
          throw error(errc::timed_out, "agent", "announce", "no slot");
        }
        slot->publish();
      }
      return std::to_string(producer_.stats().announced);
    });
    // MS: by the CPU; the slot is kept
    orders_.add("try_acquire", [this](order_words& words) {
      auto slot = producer_.acquire(milliseconds(words.number()));
      if (!slot) {
        return "no";
      }
      slots_.emplace_back(std::move(*slot));
      return "yes";
    });
    // NAME cpu|STREAM
    orders_.add("slot", [this](order_words& words) {
      const std::string name = words.text();
      const std::string on = words.text();
      auto slot = on == "cpu" ? producer_.acquire(milliseconds(20'000))
                              : producer_.acquire(stream_at(std::stoul(on)), milliseconds(20'000));
      named_slots_[name] = std::move(slot).value();
    });
    // NAME
    orders_.add("publish_slot", [this](order_words& words) {
      return std::to_string(named_slots_.at(words.text()).publish());
    });
    orders_.add("stats", [this] {
      const auto stats = producer_.stats();
      return std::to_string(stats.consumers) + " consumers, " + std::to_string(stats.dropped) +
             " dropped";
    });
  }

  void add_consumer_orders() {
    // NAME HELD GPU; "consume" with HELD 0: each item
    orders_.add("consume", [this](order_words& words) { join(words, false); });
    orders_.add("share", [this](order_words& words) { join(words, true); });
    // MS: by the CPU; releases the item and returns its number, or 0
    orders_.add("try_next", [this](order_words& words) {
      const auto item = consumer_.next(milliseconds(words.number()));
      return std::to_string(item ? item->number() : 0);
    });
    // NAME cpu|STREAM
    orders_.add("next", [this](order_words& words) {
      const std::string name = words.text();
      const std::string on = words.text();
      auto item = on == "cpu" ? consumer_.next(milliseconds(20'000))
                              : consumer_.next(stream_at(std::stoul(on)), milliseconds(20'000));
      named_items_[name] = std::move(item).value();
    });
    // NAME [now|STREAM]
    orders_.add("release", [this](order_words& words) {
      channel_item& item = named_items_.at(words.text());
      const std::string on = words.text();
      on.empty()    ? item.release()
      : on == "now" ? item.release_now()
                    : item.release_on(stream_at(std::stoul(on)));
    });
    // by the CPU, and writes into the slot
    orders_.add("start_item", [this] {
      started_ = acquire_on_cpu();
      std::memset(started_.data(), 0xFF, started_.bytes());
      return std::to_string(producer_.stats().announced + 1);
    });
    // COUNT CHECK: stream 0 copies each item; returns first, last, items
    orders_.add("take", [this](order_words& words) {
      const std::uint64_t count = words.number();
      return take(count, words.number() != 0);
    });
    // COUNT: by the CPU, without a release; returns their numbers
    orders_.add("hold", [this](order_words& words) {
      std::string numbers;
      for (std::uint64_t left = words.number(); left != 0; --left) {
        auto item = consumer_.next(milliseconds(60'000));
        numbers += (numbers.empty() ? "" : " ") + std::to_string(item ? item->number() : 0);
        if (item) {
          held_.push_back(std::move(*item));
        }
      }
      return numbers;
    });
    orders_.add("end", [this] {
      started_ = {};
      slots_.clear();
      named_slots_.clear();
      named_items_.clear();
      producer_.reset();
      held_.clear();
      consumer_.reset();
    });
    orders_.add("ended", [this] { return consumer_.has_ended() ? "yes" : "no"; });
  }

  std::string take(std::uint64_t count, bool checks) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    std::uint64_t taken = 0;
    for (; taken != count; ++taken) {
      auto item = consumer_.next(stream_at(0), milliseconds(20'000));
      if (!item) {
        break;
      }
      first = first == 0 ? item->number() : first;
      if (checks) {
        pin(item->bytes());
        must(cu()->cuMemcpyDtoHAsync_v2(
            loaded_.data(), address_of(item->data()), loaded_.size(), handle_at(0)));
      }
      std::uint64_t named = 0;
      std::memcpy(&named, item->metadata().data(), std::min(sizeof named, item->metadata().size()));
      item->release();
      if (checks) {
        must(cu()->cuStreamSynchronize(handle_at(0)));
        if (is_good()) {
          check_item(item->number(), named);
        }
      }
      if (item->number() <= last && !shares_) {
        throw error(errc::protocol_error, "agent", "take", "numbers do not grow");
      }
      last = item->number();
    }
    must(cu()->cuStreamSynchronize(handle_at(0)));
    consumer_.check();
    return std::to_string(first) + " " + std::to_string(last) + " " + std::to_string(taken);
  }
  void join(order_words& words, bool shares) {
    const std::string name = words.text();
    shares_ = shares;
    consumer_options options;
    options.held = static_cast<std::uint32_t>(words.number());
    options.mode = shares              ? consumer_mode::share
                   : options.held == 0 ? consumer_mode::block
                                       : consumer_mode::latest;
    options.device = words.text();
    options.timeout = milliseconds(20'000);
    options.resume = milliseconds(20'000);
    consumer_ = channel_consumer::open(*client_, name, options);
  }
  [[nodiscard]] channel_slot acquire_on_cpu() {
    auto slot = producer_.acquire(milliseconds(20'000));
    if (!slot) {
      throw error(errc::timed_out, "agent", "start_item", "no slot");
    }
    return std::move(*slot);
  }
  static const driver::cuda_driver& cu() { return driver::cuda_driver::instance(); }
  static void must(cuda::CUresult result) {
    driver::cuda_driver::check(result, "agent", {}, "the driver");
  }
  static cuda::CUdeviceptr address_of(const void* pointer) {
    return reinterpret_cast<cuda::CUdeviceptr>(pointer);
  }
  timeline& of(const std::string& name) {
    static timeline none;
    const auto at = timelines_.find(name);
    return at == timelines_.end() ? none : at->second;
  }
  void add_streams(std::uint64_t count) {
    for (std::uint64_t i = 0; i != count; ++i) {
      cuda::CUstream added = nullptr;
      must(cu()->cuStreamCreate(&added, cuda::CU_STREAM_NON_BLOCKING));
      streams_.push_back(added);
    }
  }
  cuda::CUstream handle_at(std::uint64_t index) { return streams_.at(index); }
  void* stream_at(std::uint64_t index) { return streams_.at(index); }

  // ---- graphs: the producer's stream fills the segment with i in round i, the consumer's copies
  // it; each waits for the other one in graphs that are launched in each round ----

  /// What `record` enqueues on stream 0.
  template <typename Record>
  cuda::CUgraphExec capture(Record&& record) {
    must(cu()->cuStreamBeginCapture_v2(handle_at(0), cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    record();
    cuda::CUgraph graph = nullptr;
    must(cu()->cuStreamEndCapture(handle_at(0), &graph));
    cuda::CUgraphExec executable = nullptr;
    must(cu()->cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;  // neither is destroyed before the process ends
  }
  void launch(cuda::CUgraphExec executable) { must(cu()->cuGraphLaunch(executable, handle_at(0))); }
  void fill_or_copy(bool fills, segment& segment, std::uint64_t round) {
    if (fills) {
      must(cu()->cuMemsetD32Async(address_of(segment.mutable_data()),
                                  static_cast<unsigned int>(round),
                                  segment.size_bytes() / sizeof(unsigned int),
                                  handle_at(0)));
    } else {
      must(cu()->cuMemcpyDtoHAsync_v2(loaded_.data() + (round - 1) * segment.size_bytes(),
                                      address_of(segment.data()),
                                      segment.size_bytes(),
                                      handle_at(0)));
    }
  }
  /// The good rounds, whose number each word of the segment had.
  std::string finish_rounds(bool produces,
                            timeline& other,
                            const segment& segment,
                            std::uint64_t count) {
    must(cu()->cuStreamSynchronize(handle_at(0)));
    if (!produces) {
      const auto* const words = reinterpret_cast<const unsigned int*>(loaded_.data());
      const std::size_t words_per_round = segment.size_bytes() / sizeof(unsigned int);
      last_good_ = 0;
      while (last_good_ != count &&
             std::all_of(words + last_good_ * words_per_round,
                         words + (last_good_ + 1) * words_per_round,
                         [&](unsigned int each) { return each == last_good_ + 1; })) {
        ++last_good_;
      }
    }
    other.check();
    return std::to_string(produces ? count : last_good_);
  }

  std::string rounds_of_values(
      bool produces, timeline& mine, timeline& other, segment& segment, std::uint64_t count) {
    mine.prepare(stream_at(0));
    other.prepare(stream_at(0));
    pin(produces ? 1 : count * segment.size_bytes());
    graph_operations before;
    graph_operations after;
    // The producer's round i follows the consumer's i - 1.
    const auto waits =
        capture([&] { before = stream_batch().wait(other, 0).record(stream_at(0)); });
    const auto signals =
        capture([&] { after = stream_batch().signal(mine, 1).record(stream_at(0)); });
    for (std::uint64_t i = 1; i <= count; ++i) {
      const std::uint64_t wanted = produces ? i - 1 : i;
      before.set(waits, stream_at(0), std::span(&wanted, 1));
      launch(waits);
      fill_or_copy(produces, segment, i);
      after.set(signals, stream_at(0), std::span(&i, 1));
      launch(signals);
    }
    return finish_rounds(produces, other, segment, count);
  }

  std::string rounds_of_flags(
      bool produces, timeline& mine, timeline& other, segment& segment, std::uint64_t count) {
    constexpr std::uint64_t full = 1;  // the consumer: it has copied
    constexpr std::uint64_t empty = 2;
    mine.prepare(stream_at(0));
    other.prepare(stream_at(0));
    pin(produces ? 1 : count * segment.size_bytes());
    mine.set_flags(empty);
    const auto before = capture(
        [&] { stream_batch().wait_flags(other, produces ? empty : full).enqueue(stream_at(0)); });
    const auto after = capture([&] {
      stream_batch()
          .set_flags(mine, full)
          .wait_flags(other, produces ? full : empty)
          .set_flags(mine, empty)
          .enqueue(stream_at(0));
    });
    for (std::uint64_t i = 1; i <= count; ++i) {
      launch(before);
      fill_or_copy(produces, segment, i);
      launch(after);
    }
    return finish_rounds(produces, other, segment, count);
  }

  gpushm_testing::order_table orders_;
  bool shares_ = false;  ///< it may be given what a dead consumer had
  std::uint64_t last_good_ = 0;
  std::optional<client> client_;
  std::map<std::string, timeline> timelines_;
  std::vector<timeline> many_;
  std::map<std::string, segment> segments_;
  graph_operations recorded_;
  cuda::CUgraphExec executable_ = nullptr;
  std::vector<cuda::CUstream> streams_;
  channel_producer producer_;
  channel_consumer consumer_;
  std::vector<channel_item> held_;
  channel_slot started_;
  std::vector<channel_slot> slots_;
  std::map<std::string, channel_slot> named_slots_;
  std::map<std::string, channel_item> named_items_;
  /// Returns false if the producer died before it completed the items that the stream was given.
  bool is_good() {
    try {
      consumer_.check();
      return true;
    } catch (const error& why) {
      if (why.code() != errc::peer_died) {
        throw;
      }
      return false;
    }
  }
  /// `named`: in its metadata.
  void check_item(std::uint64_t number, std::uint64_t named) const {
    const auto* const words = reinterpret_cast<const unsigned int*>(loaded_.data());
    const bool is_whole =
        std::all_of(words, words + loaded_.size() / sizeof(unsigned int), [&](unsigned int each) {
          return each == static_cast<unsigned int>(number);
        });
    if (!is_whole || named != number) {
      throw error(errc::protocol_error,
                  "agent",
                  std::to_string(number),
                  "the item is not the one that was published",
                  std::to_string(words[0]));
    }
  }
  /// A copy to other memory would wait for the stream.
  void pin(std::size_t bytes) {
    if (loaded_.size() != bytes) {
      void* address = nullptr;
      must(cu()->cuMemHostAlloc(&address, bytes, 0));
      loaded_ = {static_cast<unsigned char*>(address), bytes};
    }
  }
  std::span<unsigned char> loaded_;  // never freed
};

}  // namespace

int main() {
  agent().run();
}
