// SPDX-License-Identifier: Apache-2.0
#include "client/lease/chunk_stream.hpp"

#include <fcntl.h>

#include <utility>

#include "base/process/deadline.hpp"

namespace gpushm::client_detail {

std::optional<memory::chunk_source::chunk> chunk_stream::next() {
  const std::uint32_t count = lease_->info().chunk_count;
  if (taken_ == now_.files.size()) {
    if (arrived() >= count) {
      return std::nullopt;
    }
    receive();
  }
  if (!asked_ && arrived() < count) {
    ask();
  }
  chunk one{std::move(now_.files[taken_]), now_.bytes[taken_]};
  ++taken_;
  keep(one);
  return one;
}

void chunk_stream::keep(const chunk& chunk) {
  if (!kept_) {
    return;
  }
  auto copy = base::guarded_fd::open([&] { return ::fcntl(chunk.file.get(), F_DUPFD_CLOEXEC, 0); });
  if (!copy) {  // this process has no descriptors left
    kept_.reset();
    return;
  }
  kept_->files.push_back(std::move(copy));
  kept_->bytes.push_back(chunk.size_bytes);
  if (before_ + taken_ == lease_->info().chunk_count) {
    lease_->finish_keeping(std::move(*kept_));
    kept_.reset();
  }
}

void chunk_stream::ask() {
  const wire::segment& info = lease_->info();
  asked_.reset();
  broker_ = lease_->broker();
  asked_ = broker_->request_ahead(wire::fetch_chunks{lease_->generation(), arrived()},
                                  {"open", info.name},
                                  base::deadline_after(timeout_));
}

void chunk_stream::receive() {
  if (!asked_) {
    ask();
  }
  const wire::segment& info = lease_->info();
  reply got = asked_->get({"open", info.name}, base::deadline_after(timeout_));
  asked_.reset();
  const std::uint32_t first = arrived();
  auto* received = std::get_if<wire::chunks>(&got.body);
  if (received == nullptr || received->generation != lease_->generation() ||
      received->first_chunk != first || got.descriptors.empty() ||
      got.descriptors.size() != received->chunk_bytes.size() ||
      got.descriptors.size() > info.chunk_count - first) {
    throw unexpected_reply({"open", info.name});
  }
  now_ = {std::move(received->chunk_bytes), std::move(got.descriptors)};
  before_ = first;
  taken_ = 0;
}

}  // namespace gpushm::client_detail
