// SPDX-License-Identifier: Apache-2.0
#include "gpushm/segment.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "client/segment_impl.hpp"
#include "gpushm/error.hpp"

namespace gpushm {

detail::segment_lease& detail::segment_impl::lease(std::string_view operation) const {
  if (mapping_->lease() == nullptr) {
    throw error(errc::invalid_argument,
                operation,
                info().name,
                "this memory was imported without a broker",
                "do it where the memory is shared");
  }
  return *mapping_->lease();
}

namespace {

void check_writable(std::string_view operation, const segment& of) {
  if (of.access() == access::read) {
    throw error(errc::invalid_argument,
                operation,
                of.name(),
                "the segment is mapped for reading only",
                "open it with access::read_write");
  }
}

}  // namespace

segment::segment() noexcept = default;
segment::segment(segment&&) noexcept = default;
segment& segment::operator=(segment&& other) noexcept {
  base::held_log_lines lines;
  impl_ = std::move(other.impl_);
  return *this;
}
segment::~segment() {
  reset();
}
segment::segment(std::shared_ptr<detail::segment_impl> impl) noexcept : impl_(std::move(impl)) {}

segment::operator bool() const noexcept {
  return impl_ != nullptr;
}

const detail::segment_impl& segment::impl() const {
  if (!impl_) {
    throw error(errc::invalid_argument,
                "segment",
                {},
                "this segment object is empty",
                "open or create a segment first; a moved-from object is empty");
  }
  return *impl_;
}

void segment::reset() noexcept {
  base::held_log_lines lines;
  impl_.reset();
}

const void* segment::data() const noexcept {
  return impl_ ? impl_->region().data() : nullptr;
}
void* segment::mutable_data() const {
  check_writable("mutable_data", *this);
  return impl().region().data();
}
int segment::ordinal() const {
  return impl().mapped().ordinal();
}
std::uint64_t segment::size_bytes() const {
  return impl().info().size_bytes;
}
const std::string& segment::name() const {
  return impl().info().name;
}
const device_id& segment::device() const {
  return impl().info().device;
}
gpushm::backend segment::backend() const {
  return impl().info().backend;
}
gpushm::access segment::access() const {
  return impl().mapped().access();
}
gpushm::lifetime segment::lifetime() const {
  return impl().info().lifetime;
}
gpushm::generation segment::generation() const {
  return impl().info().generation;
}
const gpushm::epoch& segment::epoch() const {
  static constexpr gpushm::epoch none{};
  const detail::segment_lease* lease = impl().mapped().lease();
  return lease == nullptr ? none : lease->broker().broker().epoch;
}
std::span<const std::byte> segment::metadata() const {
  detail::check_not_forked(impl().forks(), "metadata", name());
  const detail::segment_lease* lease = impl().mapped().lease();
  return lease == nullptr ? std::span<const std::byte>() : lease->metadata();
}
segment_state segment::state() const {
  return impl().mapped().state();
}
segment_view segment::view() const {
  segment_view made;
  made.data_ = impl().region().data();
  made.size_bytes_ = size_bytes();
  made.device_ = device();
  made.ordinal_ = ordinal();
  made.access_ = access();
  made.owner_ = impl_;
  return made;
}

void segment::publish(std::span<const std::byte> metadata) {
  base::held_log_lines lines;
  detail::check_not_forked(impl().forks(), "publish", name());
  impl().lease("publish").publish(
      metadata, "publish", base::deadline_after(impl().request_timeout()));
}

void segment::publish(std::string_view metadata) {
  publish(std::as_bytes(std::span(metadata.data(), metadata.size())));
}

void segment::unshare() {
  base::held_log_lines lines;
  detail::check_not_forked(impl().forks(), "unshare", name());
  impl().lease("unshare").unshare(base::deadline_after(impl().request_timeout()));
}

namespace {

void check_range(std::string_view operation,
                 const segment& of,
                 std::uint64_t offset_bytes,
                 std::uint64_t size_bytes) {
  if (offset_bytes > of.size_bytes() || size_bytes > of.size_bytes() - offset_bytes) {
    throw error(errc::invalid_argument,
                operation,
                of.name(),
                std::to_string(size_bytes) + " bytes at offset " + std::to_string(offset_bytes) +
                    " lie outside the segment's " + std::to_string(of.size_bytes()),
                "stay within size_bytes()");
  }
}

/// A child inherits mappings of host memory, and nothing of the driver.
void check_reachable(std::string_view operation, const segment& of, std::uint64_t made_in) {
  if (of.device().kind != device_kind::host) {
    detail::check_not_forked(made_in, operation, of.name());
  }
}

}  // namespace

void segment::read(std::uint64_t offset_bytes, std::span<std::byte> destination) const {
  base::held_log_lines lines;
  check_reachable("read", *this, impl().forks());
  check_range("read", *this, offset_bytes, destination.size());
  impl().region().read(offset_bytes, destination);
}

void segment::write(std::uint64_t offset_bytes, std::span<const std::byte> source) {
  base::held_log_lines lines;
  check_reachable("write", *this, impl().forks());
  check_writable("write", *this);
  check_range("write", *this, offset_bytes, source.size());
  impl().region().write(offset_bytes, source);
}

void segment::fill(std::byte value) {
  base::held_log_lines lines;
  check_reachable("fill", *this, impl().forks());
  check_writable("fill", *this);
  impl().region().fill(0, size_bytes(), value);
}

}  // namespace gpushm
