#include "libcore/profiler/device_limits.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "libcore/base/philox.h"
#include "libcore/base/units.h"
#include "libcore/ops/matmul.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

/// The time of the fastest of a few runs, by the device's events.
double fastest(Device& device, Stream& stream, const std::function<void()>& enqueue) {
  constexpr int kRuns = 5;
  const std::unique_ptr<Event> begin = device.make_event(), end = device.make_event();
  enqueue();
  stream.synchronize();
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    stream.record(*begin);
    enqueue();
    stream.record(*end);
    stream.synchronize();
    best = std::min(best, static_cast<double>(end->time_ns() - begin->time_ns()) * 1e-9);
  }
  return best;
}

/// Bytes a second of copies between two memories, of so many bytes that a copy takes some milliseconds.
double copy_rate(Device& device, Memory& from_memory, Memory& to_memory) {
  constexpr double kEnough = 0.004;
  constexpr int64_t kLeast = int64_t{1} << 20, kMost = int64_t{1} << 30, kAlignment = 256;
  for (int64_t bytes = kLeast;; bytes *= 2) {
    void *from = from_memory.allocate(bytes, kAlignment), *to = to_memory.allocate(bytes, kAlignment);
    double seconds = 0;
    if (from != nullptr && to != nullptr) {
      Stream& stream = device.stream();
      if (!from_memory.host_access()) stream.fill(from, 1, bytes);
      seconds = fastest(device, stream, [&] { stream.copy(to, from, bytes); });
    }
    from_memory.free(from, bytes, kAlignment);
    to_memory.free(to, bytes, kAlignment);
    if (seconds == 0) return 0;  // no memory
    if (seconds >= kEnough || bytes == kMost) return static_cast<double>(bytes) / seconds;
  }
}

/// Random numbers: those of constant matrices take less power, so that some processors compute faster. A part is repeated.
Tensor random_matrix(DType dtype, int64_t size) {
  const int64_t elements = size * size, different = std::min<int64_t>(elements, (int64_t{1} << 20) - 1);
  Tensor part(DType::kF32, Shape{different});
  RandomStream random(0, "matrix", 0);
  for (int64_t i = 0; i < different; ++i) part.data_as<float>()[i] = static_cast<float>(random.uniform()) - 0.5f;
  part = part.to(dtype);
  Tensor values(dtype, Shape{size, size});
  for (int64_t i = 0; i < elements; i += different) {
    const int64_t bytes = std::min(different, elements - i) * dtype_size(dtype);
    std::memcpy(static_cast<std::byte*>(values.data()) + i * dtype_size(dtype), part.data(), static_cast<size_t>(bytes));
  }
  return values;
}

ProductRate product_rate(std::string_view device, const std::string& name, DType dtype, bool tf32) {
  constexpr double kEnough = 0.01;
  constexpr int64_t kLeast = 64, kMost = 8192;
  for (int64_t size = kLeast;; size *= 2) {
    Engine engine(open_backend(device, {.tf32 = tf32}));
    const auto capture = [&] {
      Graph graph;
      const TensorType type{dtype, Shape{size, size}, {}, {}};
      const Value a = graph.add_input("a", type, ValueRole::kInput), b = graph.add_input("b", type, ValueRole::kInput);
      graph.add_output("y", matmul(a, b));
      return graph;
    };
    const std::shared_ptr<const Program> program =
        engine.program({.mode = "operator", .variant = name}, "limits of the device", capture, ParameterFormats::kLead);
    const std::unique_ptr<Execution> execution = engine.bind(program);
    const Tensor matrix = random_matrix(dtype, size);
    execution->feed("a", matrix);
    execution->feed("b", matrix);
    Device& on = engine.backend().device();
    const double seconds = fastest(on, on.stream(), [&] { execution->run(); });
    if (seconds < kEnough && size < kMost) continue;
    const auto n = static_cast<double>(size);
    return {name, std::string(program->steps().front().backend), size, 2 * n * n * n / seconds};
  }
}

}  // namespace

DeviceLimits measure_device(std::string_view device) {
  Device& on = open_backend(device)->device();
  DeviceLimits limits{.device = std::string(device)};
  limits.copy_per_s = 2 * copy_rate(on, on.memory(), on.memory());
  limits.to_device_per_s = copy_rate(on, on.host_memory(), on.memory());
  limits.from_device_per_s = copy_rate(on, on.memory(), on.host_memory());
  for (const auto& [name, dtype, tf32] :
       {std::tuple("f32", DType::kF32, false), {"tf32", DType::kF32, true}, {"bf16", DType::kBF16, false}, {"f16", DType::kF16, false}})
    limits.products.push_back(product_rate(device, name, dtype, tf32));
  return limits;
}

nlohmann::ordered_json device_json(const DeviceLimits& limits) {
  nlohmann::ordered_json json{{"device", limits.device},
                              {"copy_per_s", limits.copy_per_s},
                              {"to_device_per_s", limits.to_device_per_s},
                              {"from_device_per_s", limits.from_device_per_s},
                              {"products", nlohmann::ordered_json::array()}};
  for (const ProductRate& product : limits.products)
    json["products"].push_back({{"dtype", product.dtype}, {"kernel", product.kernel}, {"size", product.size}, {"per_s", product.per_s}});
  return json;
}

std::optional<DeviceLimits> device_limits_of(const nlohmann::json& json) try {
  DeviceLimits limits{.device = json.at("device"),
                      .copy_per_s = json.at("copy_per_s"),
                      .to_device_per_s = json.at("to_device_per_s"),
                      .from_device_per_s = json.at("from_device_per_s")};
  for (const auto& product : json.at("products"))
    limits.products.push_back({product.at("dtype"), product.at("kernel"), product.at("size"), product.at("per_s")});
  return limits;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}
Table device_table(const DeviceLimits& limits) {
  Table table{{"what", "of", "value", "unit"}, {}};
  const auto bytes = [&](const char* what, const char* of, double rate) {
    table.rows.push_back({what, of, human_number(rate / 1e9), "GB/s"});
  };
  bytes("read and write memory", "copies in it", limits.copy_per_s);
  bytes("copy to the device", "from pinned memory", limits.to_device_per_s);
  bytes("copy from the device", "to pinned memory", limits.from_device_per_s);
  for (const ProductRate& product : limits.products)
    table.rows.push_back({"product " + product.dtype, cat(product.size, " x ", product.size, ", ", product.kernel),
                          human_number(product.per_s / 1e9), "GFLOP/s"});
  return table;
}

}  // namespace galley
