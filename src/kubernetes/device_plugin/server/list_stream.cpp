// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/device_plugin/server/list_stream.hpp"

#include <exception>

#include "kubernetes/device_plugin/server/grpc_status.hpp"

namespace gpushm::device_plugin {

void list_stream::update() {
  const std::lock_guard lock(mutex_);
  outdated_ = true;
  advance();
}

void list_stream::end(ending ending) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  how_ = ending;
  advance();
}

void list_stream::advance() {
  if (list_ != nullptr || finished_) {
    return;
  }
  if (cancelled_) {
    finish(grpc::Status::CANCELLED);
  } else if (ended_ && how_ == ending::after_empty_list) {
    finished_ = true;
    list_ = std::make_unique<v1beta1::ListAndWatchResponse>();
    StartWriteAndFinish(list_.get(), {}, grpc::Status::OK);
  } else if (ended_) {
    finish(grpc::Status::OK);
  } else if (outdated_) {
    outdated_ = false;
    started_ = std::chrono::steady_clock::now();
    list_ = std::make_unique<v1beta1::ListAndWatchResponse>();
    try {
      owner_.fill(*list_);
    } catch (...) {
      list_.reset();
      const failed_call failed = failed_call_of(std::current_exception());
      owner_.sent(failed.status, std::chrono::steady_clock::now() - started_);
      finish(failed.status);
      return;
    }
    StartWrite(list_.get());
  }
}

void list_stream::finish(const grpc::Status& status) {
  finished_ = true;
  Finish(status);
}

void list_stream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  // Frees hundreds of kilobytes on large nodes: streams are idle most of the time.
  list_.reset();
  owner_.sent(ok ? grpc::Status::OK : grpc::Status::CANCELLED,
              std::chrono::steady_clock::now() - started_);
  cancelled_ = cancelled_ || !ok;
  advance();
}

void list_stream::OnCancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  advance();
}

void list_stream::OnDone() {
  owner_.done(*this);
  delete this;  // NOLINT(cppcoreguidelines-owning-memory): a reactor owns itself
}

}  // namespace gpushm::device_plugin
