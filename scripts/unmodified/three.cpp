// SPDX-License-Identifier: Apache-2.0
// Three exporters, each PID 1 of its own namespace, with allocations of equal sizes, and one
// importer (PID 1, too) that opens all of them at once: does the driver, or a library between,
// conflate them? Driver API; nothing of gpushm.
//
//   three export DIR NAME SEED      writes DIR/NAME.handle (two allocations), checks the
//                                   importer's bytes, exits on DIR/end
//   three import DIR NAME...        SEED of the n-th name is n
//
// The exporter of the last name exits early (DIR/die): what the importer mapped must stay right,
// and the handle of its second allocation, which nobody opened, must be refused.
//
// Exit status 0: every byte was right on each side.
#include <cuda.h>
#include <sys/file.h>

#include <map>
#include <set>

#include "driver.hpp"
#include "exchange.hpp"

namespace {

using namespace unmodified;

constexpr size_t size = 4 << 20;

struct offer {
  CUipcMemHandle first;
  CUipcMemHandle second;
  unsigned long long address;
};

void fill(CUdeviceptr memory, unsigned seed) {
  MUST(cuMemsetD32(memory, seed, size / 4));
  // The words differ by place, too.
  MUST(cuMemsetD32(memory + size / 2, seed ^ 0xa5a5a5a5u, 1024));
  MUST(cuCtxSynchronize());
}

size_t wrong_words(CUdeviceptr memory, unsigned seed) {
  std::vector<unsigned> words(size / 4);
  MUST(cuMemcpyDtoH(words.data(), memory, size));
  size_t wrong = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const bool marked = i >= size / 8 && i < size / 8 + 1024;
    wrong += words[i] != (marked ? seed ^ 0xa5a5a5a5u : seed);
  }
  return wrong;
}

int export_memory(const std::string& d, const std::string& name, unsigned seed) {
  result out;
  start();
  CUdeviceptr memory[2];
  offer made{};
  MUST(cuMemAlloc(&memory[0], size));
  MUST(cuMemAlloc(&memory[1], size));
  MUST(cuIpcGetMemHandle(&made.first, memory[0]));
  MUST(cuIpcGetMemHandle(&made.second, memory[1]));
  made.address = memory[0];
  fill(memory[0], seed);
  fill(memory[1], seed + 1000);
  // Held for as long as this process is alive, whatever its PID namespace.
  const int lock = open((d + "/" + name + ".alive").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) {
    perror("lock");
    return 3;
  }
  write_file(d + "/" + name + ".handle", &made, sizeof made);
  out.add("pid", static_cast<int>(getpid()));
  const bool written = wait_file(d + "/written");
  const size_t wrong = written ? wrong_words(memory[0], seed + 77) : size / 4;
  out.add("wrong_words_back", static_cast<double>(wrong));
  out.add("wrong_words_unopened", static_cast<double>(wrong_words(memory[1], seed + 1000)));
  out.print();
  signal_file(d + "/" + name + ".checked");
  wait_file(d + "/" + name + ".end");
  return wrong == 0 ? 0 : 1;
}

int import_memory(const std::string& d, const std::vector<std::string>& names) {
  result out;
  start();
  std::map<std::string, offer> offers;
  std::set<std::string> bytes;
  std::set<unsigned long long> addresses;
  for (const auto& name : names) {
    offer& made = offers[name];
    read_file(d + "/" + name + ".handle", &made, sizeof made);
    bytes.insert(std::string(made.first.reserved, 56));
    addresses.insert(made.address);
  }
  out.add("pid", static_cast<int>(getpid()));
  // 1: byte-identical handles (without bytes 56 to 63) and addresses of the exporters.
  out.add("different_handles", static_cast<int>(bytes.size()));
  out.add("different_addresses_of_exporters", static_cast<int>(addresses.size()));
  std::map<std::string, CUdeviceptr> mapped;
  std::set<CUdeviceptr> places;
  for (const auto& name : names) {
    const CUresult opened =
        cuIpcOpenMemHandle(&mapped[name], offers[name].first, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    out.add("open_" + name, static_cast<int>(opened));
    if (opened != CUDA_SUCCESS) {
      mapped.erase(name);
    } else {
      places.insert(mapped[name]);
    }
  }
  out.add("different_mappings", static_cast<int>(places.size()));
  size_t wrong = mapped.size() == names.size() ? 0 : 1;
  unsigned seed = 0;
  for (const auto& name : names) {
    ++seed;
    if (mapped.count(name) != 0) {
      const size_t here = wrong_words(mapped[name], seed);
      out.add("wrong_words_" + name, static_cast<double>(here));
      wrong += here;
      fill(mapped[name], seed + 77);
    }
  }
  signal_file(d + "/written");
  for (const auto& name : names) {
    wait_file(d + "/" + name + ".checked");
  }
  // The last exporter ends.
  const std::string& last = names.back();
  signal_file(d + "/" + last + ".end");
  const int lock = open((d + "/" + last + ".alive").c_str(), O_RDONLY | O_CLOEXEC);
  bool ended = false;
  for (const double until = now() + patience(); !ended && now() < until; usleep(1000)) {
    ended = flock(lock, LOCK_EX | LOCK_NB) == 0;
  }
  out.add("last_exporter_ended", ended);
  // A lock ends before the driver's files are closed, which free the memory.
  CUdeviceptr late = 0;
  CUresult opened_late = CUDA_SUCCESS;
  const double since = now();
  for (const double until = since + patience(); now() < until; usleep(1000)) {
    opened_late =
        cuIpcOpenMemHandle(&late, offers[last].second, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (opened_late != CUDA_SUCCESS) {
      break;
    }
    cuIpcCloseMemHandle(late);
  }
  out.add("open_of_the_dead", static_cast<int>(opened_late));
  out.add("refused_after_s", now() - since);
  if (mapped.count(last) != 0) {
    const size_t after = wrong_words(mapped[last], seed + 77);
    out.add("wrong_words_after_death", static_cast<double>(after));
    wrong += after;
  }
  for (const auto& [name, place] : mapped) {
    out.add("close_" + name, static_cast<int>(cuIpcCloseMemHandle(place)));
  }
  for (const auto& name : names) {
    signal_file(d + "/" + name + ".end");
  }
  out.print();
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  if (count >= 5 && std::string(words[1]) == "export") {
    return export_memory(words[2], words[3], static_cast<unsigned>(atoi(words[4])));
  }
  if (count >= 4 && std::string(words[1]) == "import") {
    return import_memory(words[2], std::vector<std::string>(words + 3, words + count));
  }
  fprintf(stderr, "usage: three export DIR NAME SEED | import DIR NAME...\n");
  return 64;
}
