// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace gpushm::memory {

/// Things that this process makes once and shares while anybody uses them, because the driver
/// counts or forbids second ones. Making and ending happen under one lock, so that a new one never
/// meets an old one that is just ending. Must outlive everything that it gave out: static, never
/// destroyed.
///
/// Shared objects: safe.
template <typename Key, typename Value>
class shared_table {
 public:
  /// The living value of `key`, or what `make(all)` returns as std::unique_ptr<Value>; `all` is for
  /// looking at the others, `for_each(visit(key, value))`. Blocks while another thread makes or
  /// ends one.
  template <typename Make>
  [[nodiscard]] std::shared_ptr<Value> find_or_make(const Key& key, Make&& make) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        const auto at = entries_.find(key);
        if (at == entries_.end()) {
          return insert(key, make(*this));
        }
        if (auto alive = at->second.lock()) {
          return alive;
        }
      }
      std::this_thread::yield();  // its last user waits for the lock, to end it
    }
  }

  /// Only from within `make`.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [key, entry] : entries_) {
      if (const auto alive = entry.lock()) {
        visit(key, *alive);
      }
    }
  }

 private:
  struct ender {
    shared_table* table;
    Key key;
    void operator()(Value* ended) const {
      const std::lock_guard lock(table->mutex_);
      const std::unique_ptr<Value> owned(ended);
      table->entries_.erase(key);
    }
  };

  std::shared_ptr<Value> insert(const Key& key, std::unique_ptr<Value> made) {
    std::weak_ptr<Value>& entry = entries_[key];
    std::unique_ptr<Value, ender> owned(made.release(), ender{this, key});
    std::shared_ptr<Value> shared(std::move(owned));
    entry = shared;
    return shared;
  }

  std::recursive_mutex mutex_;  // out of memory in `insert` ends a value with the lock held
  std::map<Key, std::weak_ptr<Value>> entries_;
};

}  // namespace gpushm::memory
