// SPDX-License-Identifier: Apache-2.0
#include "tests/weights/sample_model.hpp"

#include <fstream>
#include <functional>

namespace gpushm_tests {

std::vector<std::byte> bytes_of(const sample_tensor& tensor) {
  std::vector<std::byte> result(tensor.bytes);
  std::uint64_t state =
      (std::hash<std::string>()(tensor.name) + tensor.seed * 0x9E37'79B9'7F4A'7C15U) | 1U;
  for (std::byte& each : result) {
    state = state * 6'364'136'223'846'793'005U + 1'442'695'040'888'963'407U;
    each = static_cast<std::byte>(state >> 56U);
  }
  return result;
}

std::string safetensors_with(const std::string& header, std::size_t data_bytes) {
  std::string result;
  for (unsigned shift = 0; shift != 64; shift += 8) {
    result += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> shift & 0xFFU);
  }
  return result + header + std::string(data_bytes, 'x');
}

std::string safetensors_of(const std::vector<sample_tensor>& tensors, const std::string& metadata) {
  std::string header = "{";
  std::string data;
  if (!metadata.empty()) {
    header += "\"__metadata__\":" + metadata;
  }
  for (const sample_tensor& each : tensors) {
    std::string shape;
    for (const std::uint64_t size : each.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    header += (header.size() == 1 ? "" : ",");
    header += "\"" + each.name + "\":{\"dtype\":\"" + each.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + each.bytes) + "]}";
    const auto bytes = bytes_of(each);
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return safetensors_with(header + "}", 0) + data;
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::vector<sample_tensor> sample_model() {
  std::vector<sample_tensor> result{{"odd", "U8", {3}, 3},
                                    {"none", "F32", {0, 7}, 0},
                                    {"scalar", "F64", {}, 8},
                                    {"exact", "F32", {1'024, 1'024}, 4U << 20U},
                                    {"embedding", "BF16", {1'000, 5'003}, 10'006'000},
                                    {"half", "F4", {2, 3}, 3}};
  for (int i = 0; i != 300; ++i) {
    const std::uint64_t count = 1 + static_cast<std::uint64_t>(i) * 37;
    result.push_back({"layers." + std::to_string(i) + ".weight", "F16", {count, 3}, count * 3 * 2});
  }
  result.push_back({"last", "I64", {100'001}, 800'008});
  return result;
}

}  // namespace gpushm_tests
