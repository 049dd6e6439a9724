// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace gpushm::memory {

/// Things that this process makes once and shares while anybody uses them, because the driver
/// counts or forbids second ones. One thread at a time makes or ends the value of a key, so that a
/// new one never meets an old one that is just ending; the values of other keys are made and ended
/// meanwhile, and no lock is held while the driver works. Must outlive everything that it gave out:
/// static, never destroyed.
///
/// Shared objects: safe.
template <typename Key, typename Value>
class shared_table {
 public:
  /// The living value of `key`, or what `make()` returns as std::unique_ptr<Value>. Blocks while
  /// another thread makes or ends the value of this key. Throws what `make` throws.
  template <typename Make>
  [[nodiscard]] std::shared_ptr<Value> find_or_make(const Key& key, Make&& make) {
    {
      std::unique_lock lock(mutex_);
      for (;;) {
        const auto [at, is_new] = entries_.try_emplace(key);
        if (is_new) {
          break;  // empty: being made, by this thread
        }
        if (auto alive = at->second.lock()) {
          return alive;
        }
        changed_.wait(lock);
      }
    }
    std::unique_ptr<Value> owned;
    try {
      owned = make();
    } catch (...) {
      forget(key);
      throw;
    }
    // From here on the end of the value takes the entry away, also when there is no memory for
    // this.
    std::shared_ptr<Value> made(owned.release(), ender{this, key});
    {
      const std::lock_guard lock(mutex_);
      entries_.find(key)->second = made;
    }
    changed_.notify_all();
    return made;
  }

 private:
  struct ender {
    shared_table* table;
    Key key;
    void operator()(Value* ended) const {
      delete ended;  // NOLINT(cppcoreguidelines-owning-memory): what a deleter is for
      table->forget(key);
    }
  };

  void forget(const Key& key) {
    {
      const std::lock_guard lock(mutex_);
      entries_.erase(key);
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Without a living value: it is being made, or ending.
  std::map<Key, std::weak_ptr<Value>> entries_;
};

}  // namespace gpushm::memory
