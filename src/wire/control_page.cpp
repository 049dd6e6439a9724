// SPDX-License-Identifier: Apache-2.0
#include "wire/control_page.hpp"

namespace gpushm::wire {

control_page_header make_control_page_header(const gpushm::epoch& epoch,
                                             gpushm::generation generation) noexcept {
  return {control_page_magic,
          control_page_version,
          timeline_count,
          epoch,
          generation,
          timelines_offset,
          channels_offset,
          control_page_bytes};
}

}  // namespace gpushm::wire
