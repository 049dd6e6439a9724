// SPDX-License-Identifier: Apache-2.0
// A process that uses timelines by commands on standard input, one per line, and answers each with
// one line: "ok ..." or "error CODE TEXT".
#include <grp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/text/hex.hpp"
#include "gpu/driver/cuda.hpp"
#include "gpu/driver/devices.hpp"
#include "gpushm/gpushm.hpp"
#include "tests/support/process/hex.hpp"

namespace {

using namespace gpushm;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class agent {
 public:
  /// Returns the reply, without its "ok ".
  std::string execute(const std::string& order, std::istringstream& words) {
    const auto number = [&] {
      std::uint64_t value = 0;
      words >> value;
      return value;
    };
    const auto word = [&] {
      std::string text;
      words >> text;
      return text;
    };
    if (order == "pid") {
      return std::to_string(::getpid());
    }
    if (order == "connect") {
      client_.emplace(client::connect({.socket_path = word(), .timeout = milliseconds(20'000)}));
      return {};
    }
    // ---- timelines ----
    if (order == "create") {
      const std::string name = word();
      timelines_.insert_or_assign(name, timeline::create(*client_, name));
      return {};
    }
    if (order == "open") {
      const std::string name = word();
      timelines_.insert_or_assign(name, timeline::open(*client_, name, milliseconds(number())));
      return {};
    }
    // ---- without a broker ----
    if (order == "create_local") {
      timelines_.insert_or_assign(word(), timeline::create_local());
      return {};
    }
    if (order == "ticket") {
      return base::hex_text(of(word()).ticket());
    }
    if (order == "import") {
      const std::string name = word();
      timelines_.insert_or_assign(name,
                                  timeline::from_ticket(gpushm_testing::bytes_of_hex(word())));
      return {};
    }
    if (order == "become") {  // a program that sleeps
      ::alarm(60);
      ::execlp("sleep", "sleep", "60", nullptr);
    }
    if (order == "user") {
      const bool is_other =
          ::setgroups(0, nullptr) == 0 && ::setgid(65'534) == 0 && ::setuid(65'534) == 0;
      return is_other ? std::string() : "not";
    }
    if (order == "take_over") {
      timeline& on = of(word());
      on = on.take_over(milliseconds(number()));
      return {};
    }
    if (order == "hand_over") {
      const std::string name = word();
      of(name).hand_over();
      timelines_.erase(name);
      return {};
    }
    if (order == "close") {
      timelines_.erase(word());
      return {};
    }
    if (order == "signal") {
      timeline& on = of(word());
      on.signal(number());
      return {};
    }
    if (order == "set_flags") {
      timeline& on = of(word());
      on.set_flags(number());
      return {};
    }
    if (order == "value") {
      return std::to_string(of(word()).value());
    }
    if (order == "wait") {
      timeline& on = of(word());
      const std::uint64_t value = number();
      return on.wait(value, milliseconds(number())) ? "reached" : "not";
    }
    if (order == "wait_flags") {
      timeline& on = of(word());
      const std::uint64_t flags = number();
      return on.wait_flags(flags, milliseconds(number())) ? "met" : "not";
    }
    if (order == "signal_and_close") {  // SIGNALED CLOSED
      of(word()).signal(1);
      timelines_.erase(word());
      return {};
    }
    if (order == "create_many") {  // COUNT
      for (std::uint64_t left = number(); left != 0; --left) {
        many_.push_back(timeline::create(*client_, "many/" + std::to_string(many_.size())));
      }
      return {};
    }
    if (order == "many_signaled") {
      return std::to_string(std::count_if(
          many_.begin(), many_.end(), [](const timeline& each) { return each.value() != 0; }));
    }
    if (order == "check") {
      of(word()).check();
      return {};
    }
    // ---- streams: STREAM NAME VALUE ----
    if (order == "device") {
      const driver::cuda_driver& cu = driver::cuda_driver::instance();
      cuda::CUcontext context = nullptr;
      must(cu->cuDevicePrimaryCtxRetain(&context, driver::find_device(word()).handle));
      must(cu->cuCtxSetCurrent(context));
      add_streams(1);
      return {};
    }
    if (order == "reset") {
      must(cu()->cuDevicePrimaryCtxReset_v2(driver::find_device(word()).handle));
      streams_.clear();
      return {};
    }
    if (order == "streams") {
      add_streams(number());
      return {};
    }
    if (order == "blocking_stream") {  // synchronizes with the legacy default stream
      cuda::CUstream added = nullptr;
      must(cu()->cuStreamCreate(&added, cuda::CU_STREAM_DEFAULT));
      streams_.push_back(added);
      return {};
    }
    if (order == "stream_signal") {
      void* const stream = stream_at(number());
      timeline& on = of(word());
      on.signal(stream, number());
      return {};
    }
    if (order == "stream_wait") {
      void* const stream = stream_at(number());
      timeline& on = of(word());
      const std::uint64_t value = number();
      on.wait(stream, value, milliseconds(number()));
      return {};
    }
    if (order == "batch") {  // STREAM [wait|signal|wait_flags|set_flags NAME VALUE]...
      void* const stream = stream_at(number());
      stream_batch operations;
      for (std::string kind = word(); !kind.empty(); kind = word()) {
        timeline& on = of(word());
        if (kind == "wait" || kind == "signal") {
          kind == "wait" ? operations.wait(on, number()) : operations.signal(on, number());
        } else {
          kind == "wait_flags" ? operations.wait_flags(on, number())
                               : operations.set_flags(on, number());
        }
      }
      operations.enqueue(stream, milliseconds(0));
      return {};
    }
    if (order == "sync") {
      must(cu()->cuStreamSynchronize(handle_at(number())));
      return {};
    }
    if (order == "query") {
      return cu()->cuStreamQuery(handle_at(number())) == cuda::CUDA_SUCCESS ? "idle" : "busy";
    }
    if (order == "waiting") {
      const auto now = waiting_streams::now();
      return std::to_string(now.waiting) + " " + std::to_string(now.limit) + " " +
             std::to_string(now.connections);
    }
    if (order == "rounds") {  // FIRST MINE OTHER COUNT: signals and waits on stream 0
      const bool first = number() != 0;
      timeline& mine = of(word());
      timeline& other = of(word());
      const std::uint64_t count = number();
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
    }
    if (order == "record") {  // NAME VALUE: on stream 0, captured or not
      timeline& on = of(word());
      static_cast<void>(stream_batch().wait(on, number()).record(stream_at(0)));
      return {};
    }
    if (order == "capture") {
      must(cu()->cuStreamBeginCapture_v2(handle_at(0), cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      return {};
    }
    if (order == "end_capture") {
      cuda::CUgraph graph = nullptr;
      must(cu()->cuStreamEndCapture(handle_at(0), &graph));
      must(cu()->cuGraphDestroy(graph));
      return {};
    }
    if (order == "capture_signal") {  // NAME VALUE: launched by "launch"
      timeline& on = of(word());
      const std::uint64_t value = number();
      on.prepare(stream_at(0));
      executable_ = capture([&] { on.signal(stream_at(0), value); });
      return {};
    }
    if (order == "record_signal") {  // NAME VALUE: set by "set", launched by "launch"
      timeline& on = of(word());
      const std::uint64_t value = number();
      on.prepare(stream_at(0));
      executable_ =
          capture([&] { recorded_ = stream_batch().signal(on, value).record(stream_at(0)); });
      return {};
    }
    if (order == "set") {  // VALUE
      const std::uint64_t value = number();
      recorded_.set(executable_, stream_at(0), std::span(&value, 1), milliseconds(0));
      return {};
    }
    if (order == "launch") {
      launch(executable_);
      return {};
    }
    if (order == "graph_rounds") {  // produce|consume values|flags MINE OTHER SEGMENT COUNT
      const bool produces = word() == "produce";
      const bool uses_values = word() == "values";
      timeline& mine = of(word());
      timeline& other = of(word());
      segment& on = segments_.at(word());
      const std::uint64_t count = number();
      return uses_values ? rounds_of_values(produces, mine, other, on, count)
                         : rounds_of_flags(produces, mine, other, on, count);
    }
    // ---- segments ----
    if (order == "segment") {
      const std::string name = word();
      const std::uint64_t bytes = number();
      segments_.insert_or_assign(
          name, client_->create(name, {.size_bytes = bytes, .device = std::to_string(number())}));
      segments_.at(name).publish();
      return {};
    }
    if (order == "open_segment") {
      const std::string name = word();
      segments_.insert_or_assign(
          name,
          client_->open(name,
                        {.timeout = milliseconds(20'000), .device = std::to_string(number())}));
      return {};
    }
    if (order == "copies") {  // NAME: each operation of a segment that copies
      segment& on = segments_.at(word());
      const std::vector<std::byte> written(on.size_bytes() / 2, std::byte{7});
      std::vector<std::byte> got(written.size());
      on.fill(std::byte{1});
      on.write(0, written);
      on.write_from_gpu(got.size(), on.data(), got.size());
      on.read(got.size(), got);
      return got == written ? std::string() : "other bytes";
    }
    if (order == "copies_on") {  // STREAM NAME: the byte that the stream's work has written
      void* const stream = stream_at(number());
      segment& on = segments_.at(word());
      std::vector<std::byte> got(1);
      on.read_on(stream, 0, got);
      on.write_on(stream, 1, got);
      on.write_from_gpu_on(stream, 2, on.data(), 1);
      on.read(2, got);
      const auto read = std::to_string(std::to_integer<int>(got[0]));
      on.fill_on(stream, std::byte{1});
      return read;
    }
    if (order == "fill") {  // STREAM NAME BYTE: enqueued
      const auto stream = handle_at(number());
      segment& on = segments_.at(word());
      must(cu()->cuMemsetD8Async(address_of(on.mutable_data()),
                                 static_cast<unsigned char>(number()),
                                 on.size_bytes(),
                                 stream));
      return {};
    }
    if (order == "load") {  // STREAM NAME: enqueued
      const auto stream = handle_at(number());
      const segment& on = segments_.at(word());
      pin(on.size_bytes());
      must(cu()->cuMemcpyDtoHAsync_v2(
          loaded_.data(), address_of(on.data()), loaded_.size(), stream));
      return {};
    }
    if (order == "good_rounds") {
      return std::to_string(last_good_);
    }
    if (order == "loaded") {
      const bool same = std::all_of(
          loaded_.begin(), loaded_.end(), [&](unsigned char each) { return each == loaded_[0]; });
      return same && !loaded_.empty() ? std::to_string(loaded_[0]) : "mixed";
    }
    // ---- channels ----
    if (order == "produce") {  // NAME SLOTS BYTES GPU
      const std::string name = word();
      channel_options options;
      options.slots = static_cast<std::uint32_t>(number());
      options.slot_bytes = number();
      options.device = word();
      producer_ = channel_producer::create(*client_, name, options);
      return {};
    }
    if (order == "consume" ||
        order == "share") {  // NAME HELD GPU; "consume" with HELD 0: each item
      const std::string name = word();
      shares_ = order == "share";
      consumer_options options;
      options.held = static_cast<std::uint32_t>(number());
      options.mode = order == "share"    ? consumer_mode::share
                     : options.held == 0 ? consumer_mode::block
                                         : consumer_mode::latest;
      options.device = word();
      options.timeout = milliseconds(20'000);
      options.resume = milliseconds(20'000);
      consumer_ = channel_consumer::open(*client_, name, options);
      return {};
    }
    if (order == "publish") {  // COUNT [STREAMS]: each slot is filled with its number, by 1 or more
      const std::uint64_t count = number();
      const std::uint64_t streams = std::max<std::uint64_t>(number(), 1);
      for (std::uint64_t i = 0; i != count; ++i) {
        const std::uint64_t turn = i % streams;
        auto slot = producer_.acquire(stream_at(turn), milliseconds(60'000));
        if (!slot) {
          throw error(errc::timed_out, "agent", order, "no slot");
        }
        const std::uint64_t item = producer_.stats().announced + 1;
        must(cu()->cuMemsetD32Async(address_of(slot->data()),
                                    static_cast<unsigned int>(item),
                                    slot->bytes() / sizeof(unsigned int),
                                    handle_at(turn)));
        slot->publish(std::as_bytes(std::span(&item, 1)));
      }
      return std::to_string(producer_.stats().announced);
    }
    if (order == "fill_items") {  // COUNT: by the CPU, each slot with its number
      for (std::uint64_t left = number(); left != 0; --left) {
        auto slot = acquire_on_cpu();
        const std::uint64_t item = producer_.stats().announced + 1;
        std::fill_n(
            static_cast<std::uint64_t*>(slot.data()), slot.bytes() / sizeof(std::uint64_t), item);
        slot.publish(std::as_bytes(std::span(&item, 1)));
      }
      return std::to_string(producer_.stats().published);
    }
    if (order == "announce") {  // COUNT: stream 0 publishes slots that it does not fill
      for (std::uint64_t left = number(); left != 0; --left) {
        auto slot = producer_.acquire(stream_at(0), milliseconds(20'000));
        if (!slot) {
          throw error(errc::timed_out, "agent", order, "no slot");
        }
        slot->publish();
      }
      return std::to_string(producer_.stats().announced);
    }
    if (order == "try_acquire") {  // MS: by the CPU; the slot is kept
      auto slot = producer_.acquire(milliseconds(number()));
      if (!slot) {
        return "no";
      }
      slots_.emplace_back(std::move(*slot));
      return "yes";
    }
    if (order == "slot") {  // NAME cpu|STREAM
      const std::string name = word();
      const std::string on = word();
      auto slot = on == "cpu" ? producer_.acquire(milliseconds(20'000))
                              : producer_.acquire(stream_at(std::stoul(on)), milliseconds(20'000));
      named_slots_[name] = std::move(slot).value();
      return {};
    }
    if (order == "publish_slot") {  // NAME
      return std::to_string(named_slots_.at(word()).publish());
    }
    if (order == "stats") {
      const auto stats = producer_.stats();
      return std::to_string(stats.consumers) + " consumers, " + std::to_string(stats.dropped) +
             " dropped";
    }
    if (order == "try_next") {  // MS: by the CPU; releases the item and returns its number, or 0
      const auto item = consumer_.next(milliseconds(number()));
      return std::to_string(item ? item->number() : 0);
    }
    if (order == "next") {  // NAME cpu|STREAM
      const std::string name = word();
      const std::string on = word();
      auto item = on == "cpu" ? consumer_.next(milliseconds(20'000))
                              : consumer_.next(stream_at(std::stoul(on)), milliseconds(20'000));
      named_items_[name] = std::move(item).value();
      return {};
    }
    if (order == "release") {  // NAME [now|STREAM]
      channel_item& item = named_items_.at(word());
      const std::string on = word();
      on.empty()    ? item.release()
      : on == "now" ? item.release_now()
                    : item.release_on(stream_at(std::stoul(on)));
      return {};
    }
    if (order == "start_item") {  // by the CPU, and writes into the slot
      started_ = acquire_on_cpu();
      std::memset(started_.data(), 0xFF, started_.bytes());
      return std::to_string(producer_.stats().announced + 1);
    }
    if (order == "take") {  // COUNT CHECK: stream 0 copies each item; returns first, last, items
      const std::uint64_t count = number();
      const bool checks = number() != 0;
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
        std::memcpy(
            &named, item->metadata().data(), std::min(sizeof named, item->metadata().size()));
        item->release();
        if (checks) {
          must(cu()->cuStreamSynchronize(handle_at(0)));
          if (is_good()) {
            check_item(item->number(), named);
          }
        }
        if (item->number() <= last && !shares_) {
          throw error(errc::protocol_error, "agent", order, "numbers do not grow");
        }
        last = item->number();
      }
      must(cu()->cuStreamSynchronize(handle_at(0)));
      consumer_.check();
      return std::to_string(first) + " " + std::to_string(last) + " " + std::to_string(taken);
    }
    if (order == "hold") {  // COUNT: by the CPU, without a release; returns their numbers
      std::string numbers;
      for (std::uint64_t left = number(); left != 0; --left) {
        auto item = consumer_.next(milliseconds(60'000));
        numbers += (numbers.empty() ? "" : " ") + std::to_string(item ? item->number() : 0);
        if (item) {
          held_.push_back(std::move(*item));
        }
      }
      return numbers;
    }
    if (order == "end") {
      started_ = {};
      slots_.clear();
      named_slots_.clear();
      named_items_.clear();
      producer_.reset();
      held_.clear();
      consumer_.reset();
      return {};
    }
    if (order == "ended") {
      return consumer_.has_ended() ? "yes" : "no";
    }
    throw error(errc::invalid_argument, "agent", order, "unknown order");
  }

 private:
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
  agent here;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string order;
    words >> order;
    try {
      const std::string reply = here.execute(order, words);
      std::cout << "ok " << reply << std::endl;
    } catch (const error& why) {
      std::cout << "error " << to_string(why.code()) << " " << why.what() << std::endl;
    } catch (const std::exception& why) {
      std::cout << "error exception " << why.what() << std::endl;
    }
  }
}
