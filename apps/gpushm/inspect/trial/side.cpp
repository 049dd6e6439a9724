// SPDX-License-Identifier: Apache-2.0
// A worker's child: one side of one way.

#include <fmt/core.h>
#include <unistd.h>

#include <array>

#include "apps/gpushm/demo/pattern.hpp"
#include "apps/gpushm/inspect/trial/protocol.hpp"
#include "apps/gpushm/inspect/trial/trial_memory.hpp"
#include "apps/gpushm/json_output.hpp"
#include "base/files/syscall.hpp"
#include "gpu/driver/cuda.hpp"

namespace gpushm::cli {

namespace {

using inspect::way;

/// The driver's result in "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"; empty if there is none.
std::string result_in(const std::string& text) {
  const std::size_t start = text.find("CUDA_ERROR_");
  const std::size_t end = start == std::string::npos ? start : text.find(')', start);
  return end == std::string::npos ? std::string() : text.substr(start, end + 1 - start);
}

/// Without gpushm, only the driver's result is available.
json raw_failure(const error& failure) {
  std::string result = result_in(failure.cause());
  if (failure.code() == errc::device_not_found) {
    // The result of cuDeviceGet for an ordinal that does not exist.
    result = driver::result_text(cuda::CUDA_ERROR_INVALID_DEVICE);
  }
  if (result.empty()) {
    result = to_string(failure.code());
  }
  return json{{"failure", result}, {"text", failure.cause()}};
}

json gpushm_failure(const error& failure) {
  return json{{"failure", to_string(failure.code())}, {"text", failure.what()}};
}

/// One side of one way. Thread-safety: distinct objects: safe; shared objects: unsafe.
class side {
 public:
  side(way sharing_way, int orders, int answers, std::string_view refusal)
      : how_(sharing_way), orders_(orders), answers_(answers), refusal_(refusal) {}

  void run() {
    for (json order = next(); order.value("order", "end") != "end"; order = next()) {
      try {
        if (!refusal_.empty()) {
          throw error(errc::invalid_argument, "start trial", to_string(how_), refusal_);
        }
        answer(execute(order));
      } catch (const error& failure) {
        fail(inspect::is_raw(how_) ? raw_failure(failure) : gpushm_failure(failure));
      } catch (const std::exception& failure) {
        fail(json{{"failure", "system_error"}, {"text", failure.what()}});
      }
    }
    memory_.reset();
  }

 private:
  [[nodiscard]] json next() {
    std::string line;
    while (!lines_.take(line)) {
      if (!lines_.fill(orders_)) {
        return json::object();
      }
    }
    return json::parse(line);
  }

  void answer(json event) const {
    event["way"] = to_string(how_);
    event["pid"] = ::getpid();
    send_line(answers_, event.dump(-1, ' ', false, json::error_handler_t::replace));
  }
  void fail(json details) const {
    details["event"] = "failed";
    answer(std::move(details));
  }

  [[nodiscard]] json execute(const json& order) {
    const std::string command = order.at("order").get<std::string>();
    if (command == "check") {
      return compare(order.at("seed").get<std::uint64_t>(), "checked");
    }
    memory_request request;
    request.how = how_;
    request.device = order.at("device").get<std::string>();
    request.socket = order.at("socket").get<std::string>();
    request.name = order.at("name").get<std::string>();
    size_bytes_ = request.size_bytes = order.at("size_bytes").get<std::uint64_t>();
    const auto seed = order.at("seed").get<std::uint64_t>();
    if (command == "export") {
      memory_ = export_memory_for(request);
      fill(seed);
      return json{{"event", "exported"},
                  {"device", memory_->device()},
                  {"handle", memory_->handle()},
                  {"rdma", json_or_null(memory_->rdma())}};
    }
    request.memory_device = order.at("memory_device").get<std::string>();
    request.handle = order.at("handle").get<std::string>();
    std::chrono::nanoseconds open_time{0};
    memory_ = import_memory_of(request, open_time);
    json answered = compare(seed, "answered");
    if (answered["event"] == "answered") {
      fill(order.at("answer_seed").get<std::uint64_t>());
      answered["open_ns"] = open_time.count();
      answered["rdma"] = json_or_null(memory_->rdma());
      if (order.value("measure", false)) {
        answered["bytes_per_second"] = json_or_null(memory_->copy_rate(size_bytes_));
      }
    }
    return answered;
  }

  void fill(std::uint64_t seed) {
    std::vector<std::byte> bytes(size_bytes_);
    make_pattern(seed, 0, bytes);
    memory_->write(bytes);
  }
  [[nodiscard]] json compare(std::uint64_t seed, std::string_view event) const {
    std::vector<std::byte> bytes(size_bytes_);
    memory_->read(bytes);
    const check_result result = check_pattern(seed, 0, bytes);
    if (result.wrong_bytes == 0) {
      return json{{"event", event}};
    }
    return json{
        {"event", "failed"},
        {"failure", "wrong data"},
        {"text",
         fmt::format("{} of {} bytes are not what the other side wrote, the first at offset {}",
                     result.wrong_bytes,
                     result.checked_bytes,
                     result.first_wrong_offset)}};
  }

  way how_;
  int orders_;
  int answers_;
  std::string_view refusal_;
  line_buffer lines_;
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<trial_memory> memory_;
};

}  // namespace

bool send_line(int fd, std::string_view line) {
  std::string text(line);
  text += '\n';
  for (std::size_t done = 0; done < text.size();) {
    const auto count =
        base::retry([&] { return ::write(fd, text.data() + done, text.size() - done); });
    if (count < 0) {
      return false;
    }
    done += static_cast<std::size_t>(count);
  }
  return true;
}

bool line_buffer::fill(int fd) {
  std::array<char, 4096> block{};
  const auto count = base::retry([&] { return ::read(fd, block.data(), block.size()); });
  if (count <= 0) {
    return false;
  }
  text_.append(block.data(), static_cast<std::size_t>(count));
  return true;
}

bool line_buffer::take(std::string& line) {
  const std::size_t end = text_.find('\n');
  if (end == std::string::npos) {
    return false;
  }
  line = text_.substr(0, end);
  text_.erase(0, end + 1);
  return true;
}

void run_side(way sharing_way, int orders, int answers, std::string_view refusal) noexcept {
  try {
    side(sharing_way, orders, answers, refusal).run();
  } catch (const std::exception& failure) {
    // The worker reports this child's exit status.
    static_cast<void>(send_line(STDERR_FILENO, failure.what()));
    ::_exit(1);
  }
}

}  // namespace gpushm::cli
