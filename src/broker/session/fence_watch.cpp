// SPDX-License-Identifier: Apache-2.0
#include "broker/session/fence_watch.hpp"

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <utility>

namespace gpushm::broker_detail {

struct fence_watch::state : std::enable_shared_from_this<fence_watch::state> {
  state(asio::io_context& io,
        fence fence,
        end_watch of_process,
        end_watch of_life,
        std::chrono::milliseconds longest)
      : kind(fence),
        process(std::move(of_process)),
        life(std::move(of_life)),
        delay(longest),
        timer(io) {}

  void begin() {
    if (kind == fence::none) {
      begin_delay();
      return;
    }
    process.wait([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->process_ended = true;
        self->update();
      }
    });
    life.wait([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->life_ended = true;
        self->update();
      }
    });
  }

  void begin_delay() {
    if (waits) {
      asio::post(timer.get_executor(), [weak = weak_from_this()] {
        if (const auto self = weak.lock(); self && self->waits) {
          self->waits(fence_wait::delay);
        }
      });
    }
    timer.expires_after(delay);
    timer.async_wait([weak = weak_from_this()](asio::error_code code) {
      if (const auto self = weak.lock(); self && !code) {
        self->end();
      }
    });
  }

  void update() {
    if (process_ended && life_ended) {
      timer.cancel();
      if (kind == fence::unproven) {
        begin_delay();
      } else {
        end();
      }
    } else if (life_ended) {
      begin_delay();
    } else if (waits) {
      waits(fence_wait::descendant);
    }
  }

  void end() {
    if (reached) {
      std::exchange(reached, nullptr)();
    }
  }

  fence kind;
  end_watch process;
  end_watch life;
  std::chrono::milliseconds delay;
  asio::steady_timer timer;
  std::function<void()> reached;
  std::function<void(fence_wait)> waits;
  bool process_ended = false;
  bool life_ended = false;
};

fence_watch::fence_watch(asio::io_context& io,
                         fence kind,
                         end_watch&& process,
                         end_watch&& life,
                         std::chrono::milliseconds delay)
    : state_(std::make_shared<state>(io, kind, std::move(process), std::move(life), delay)) {}

fence_watch::~fence_watch() {
  state_->process.stop();
  state_->life.stop();
}

void fence_watch::wait(std::function<void()> reached, std::function<void(fence_wait)> waits) {
  state_->reached = std::move(reached);
  state_->waits = std::move(waits);
  state_->begin();
}

}  // namespace gpushm::broker_detail
