// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace gpushm::memory {

/// Values that this process creates once and shares while any user exists, because the driver
/// counts or forbids duplicates. One thread at a time creates or destroys the value of a key, so
/// that a new value never coexists with an old one that is being destroyed; values of other keys
/// are created and destroyed concurrently, and no lock is held during driver calls. Must outlive
/// every value that it returned: static, never destroyed.
///
/// Thread-safety: shared objects: safe.
template <typename Key, typename Value>
class shared_table {
 public:
  /// Returns the existing value of `key`, or the result of `make()`, a std::unique_ptr<Value>.
  /// Blocks while another thread creates or destroys the value of this key. Throws what `make`
  /// throws.
  template <typename Make>
  [[nodiscard]] std::shared_ptr<Value> find_or_make(const Key& key, Make&& make) {
    {
      std::unique_lock lock(mutex_);
      for (;;) {
        const auto [at, is_new] = entries_.try_emplace(key);
        if (is_new) {
          break;  // empty: being created, by this thread
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
    // From here on destroying the value removes the entry, even if this allocation fails.
    std::shared_ptr<Value> shared(owned.release(), deleter{this, key});
    {
      const std::lock_guard lock(mutex_);
      entries_.find(key)->second = shared;
    }
    changed_.notify_all();
    return shared;
  }

 private:
  struct deleter {
    shared_table* table;
    Key key;
    void operator()(Value* ended) const {
      delete ended;  // NOLINT(cppcoreguidelines-owning-memory): a deleter
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
  // An entry without a value: it is being created or destroyed.
  std::map<Key, std::weak_ptr<Value>> entries_;
};

}  // namespace gpushm::memory
