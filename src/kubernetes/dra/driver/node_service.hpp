// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/report/operations.hpp"
#include "kubernetes/dra/claims/claims.hpp"
#include "kubernetes/dra/driver/work_queue.hpp"

namespace grpc {
class Service;
}

namespace gpushm::dra {

/// The DRAPlugin services v1 and v1beta1, which share one implementation and differ only in
/// `share_id`.
///
/// Thread-safety: shared objects: safe.
class node_services {
 public:
  /// Nothing is owned; `observer` may be null. Calls that may wait for the API server run in
  /// `through_api`; the others, which include every unprepare, run in `local`.
  node_services(claims& prepared,
                work_queue& through_api,
                work_queue& local,
                base::operation_observer* observer);
  node_services(const node_services&) = delete;
  node_services& operator=(const node_services&) = delete;
  ~node_services();

  [[nodiscard]] std::vector<grpc::Service*> all() const;

 private:
  std::vector<std::unique_ptr<grpc::Service>> services_;
};

}  // namespace gpushm::dra
