#pragma once
// Cluster: what the planner must know of the machines: rates, memory and links, each with its source. Built-in clusters, and files that
// describe others.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/options.h"
#include "libcore/base/units.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// How memory of the device is managed. static: placed before the run; serialises: a caching allocator that frees all and starts again when
/// it finds no block, which makes the host wait for the device, so that no gather runs beside computation.
enum class Allocator : uint8_t { kStatic, kSerialises };

/// A device model.
struct DeviceModel {
  std::string_view name;
  double peak_16 = 0;      ///< Products of 16-bit floats, flops per second, dense.
  double peak_32 = 0;      ///< Products of f32 without TF32.
  double peak_8 = 0;       ///< Products of 8-bit floats or integers; 0: none.
  double bandwidth = 0;    ///< Bytes per second that element-wise kernels reach.
  double memory = 0;       ///< Bytes that a program can use.
  double link = 0;         ///< Bytes per second: bus bandwidth of a ring over the devices of a node.
  double host_link = 0;    ///< Bytes per second between a device and its host, all devices of the node active.
  double host_memory = 0;  ///< Bytes of the host of the usual node.
  std::string_view source;
};

/// A cluster with all values resolved.
struct Cluster {
  std::string name;
  std::string device;
  int64_t per_node = 8;
  double peak_16 = 0, peak_32 = 0, peak_8 = 0, bandwidth = 0, memory = 0, link = 0, host_link = 0;
  double network = 0;          ///< Bytes per second into one node; 0: one node only.
  double network_share = 1;    ///< Part of it that a collective over nodes reaches.
  double host_bandwidth = 0;   ///< Bytes per second of a host's memory, shared by the ranks of the node.
  double host_memory = 0;      ///< Bytes of a host, shared by the ranks of the node; 0: those of the devices are counted.
  double disk = 2e9;           ///< Bytes per second of a node's disk.
  double latency = 15e-6;      ///< Seconds per step of a collective.
  double launch = 0;           ///< Shortest time of a kernel, in seconds.
  double product_share = 0;    ///< Part of the peak that large products reach.
  double product_half = 0;     ///< Extent of a product at which it reaches half of that.
  double contention = 1;       ///< Rate of computation while collectives run.
  double tensor_share = 1;     ///< Part of `link` that all-reduces of tensor parallelism reach.
  bool overlaps = true;        ///< Whether collectives run beside computation; on a CPU they are computation.
  bool shared_memory = false;  ///< Ranks of a node read each other's memory: no copies, one gathered unit for each node.
  Allocator allocator = Allocator::kStatic;

  /// Time of a product of so many flops whose smallest extent is `extent`.
  double product_seconds(double flops, double extent, DType dtype) const;
  double peak(DType dtype) const;
  int64_t nodes(int64_t ranks) const { return (ranks + per_node - 1) / per_node; }
};

/// One value of a cluster, for reports.
struct ClusterFact {
  std::string name, value, source;
};
std::vector<ClusterFact> cluster_facts(const Cluster& cluster);

/// Bytes per second: 230GB/s, or bits: 400Gb/s.
struct ByteRate : TextValue {
  ByteRate() = default;
  explicit ByteRate(double b) : bytes(b) {}
  void parse(std::string_view text) override;
  std::string str() const override;
  std::string_view grammar() const override { return "230GB/s (bytes), or 400Gb/s (bits)"; }
  double bytes = 0;
};

/// A cluster file.
struct ClusterOptions : OptionsOf<ClusterOptions> {
  void options(OptionVisitor& v) override;
  std::string gpu;
  int64_t per_node = 8;
  std::optional<ByteRate> link, network;
  Percentage network_share{60};
  std::optional<ByteSize> memory, host_memory;
  Allocator allocator = Allocator::kStatic;
};

/// The cluster of a file. Throws an Error (kRecipe) with the key for an unknown device.
Cluster make_cluster(const ClusterOptions& options, std::string name);

/// Rates of this machine, measured.
struct LocalRates {
  double f32 = 0, bf16 = 0, bytes = 0;  ///< Per second, with all threads.
  int64_t cores = 1;
  double memory = 0;  ///< Bytes.
};
/// The cluster `local`: ranks are processes or threads of this machine, which share its cores and memory. `ranks`: how many share them.
Cluster local_cluster(const LocalRates& rates, int64_t ranks);

/// Built-in clusters other than local.
std::span<const std::string_view> built_in_clusters();
/// Empty: no built-in cluster of that name.
std::optional<Cluster> find_cluster(std::string_view name);
std::span<const DeviceModel> device_models();

}  // namespace galley
