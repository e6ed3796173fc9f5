#include "libcore/dist/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::array<std::string_view, 2> kAllocators{"static", "serialises"};

// Large products reach 235 to 240 of 312 TFLOP/s on random data at the power limit (cuBLAS, A100); the same part is taken for other
// devices.
constexpr double kProductShare = 0.76;
// Efficiency of a product is share * d / (d + half), d its smallest extent: a fit to published rates of layers of 1024 to 25600.
constexpr double kProductHalf = 256;
// Collectives take multiprocessors and memory bandwidth from computation.
constexpr double kContention = 0.95;
constexpr double kHostBandwidth = 150e9;  // two sockets with eight channels of DDR4-2933 each, about 40 % of their peak
constexpr double kLaunch = 3e-6;          // start of a kernel in a captured step
constexpr double kLocalLatency = 3e-6;    // a barrier of two ranks in shared memory

constexpr std::array<DeviceModel, 5> kDevices{{
    {"a100_40gb", 312e12, 19.5e12, 624e12, 1.30e12, 39.4e9, 230e9, 8e9, 1.15e12,
     "data sheet: 312 TFLOP/s bf16, 1555 GB/s (85 % reached), 40 GB less context and NCCL buffers; NVLink 3 ring 230 of 300 GB/s; PCIe 4 "
     "shared by two"},
    {"a100_80gb", 312e12, 19.5e12, 624e12, 1.60e12, 79.0e9, 230e9, 12e9, 2.0e12,
     "data sheet: 312 TFLOP/s bf16, 2039 GB/s (80 % reached), 80 GB less context and NCCL buffers; NVLink 3 ring 230 of 300 GB/s"},
    {"h100_sxm", 989e12, 67e12, 1979e12, 2.70e12, 84.0e9, 360e9, 40e9, 2.0e12,
     "data sheet: 989 TFLOP/s bf16, 3350 GB/s (80 % reached), 80 GiB less context; NVLink 4 ring 350 to 370 of 450 GB/s"},
    {"h100_96gb_500w", 800e12, 54e12, 1583e12, 1.90e12, 101e9, 350e9, 40e9, 2.0e12,
     "the SXM part limited to 500 W: about 0.8 of 989 TFLOP/s; HBM2e 2400 GB/s (80 % reached); 96 GiB less context"},
    {"h200_sxm", 989e12, 67e12, 1979e12, 3.84e12, 148e9, 360e9, 40e9, 2.0e12,
     "data sheet: 989 TFLOP/s bf16, 4800 GB/s (80 % reached), 141 GB; NVLink 4 ring 350 to 370 of 450 GB/s"},
}};

/// A built-in cluster: its device and network.
struct BuiltIn {
  std::string_view name, device;
  double network, share;
  std::string_view source;
};
constexpr std::array<BuiltIn, 4> kBuiltIn{{
    {"a100_40gb_p4d", "a100_40gb", 50e9, 0.25,
     "four EFA cards of 100 Gb/s per node; share fitted to the published GPT-175B run on 16 nodes (NCCL issue 527 saw 57, 32 and 30 GB/s "
     "on 2, 3 and 4 nodes)"},
    {"a100_80gb", "a100_80gb", 200e9, 0.6, "eight InfiniBand HDR cards of 200 Gb/s per node; 60 % in collectives of 25 MB to 1 GB"},
    {"h100_sxm", "h100_sxm", 400e9, 0.6, "eight cards of 400 Gb/s per node; share as for HDR"},
    {"h200_sxm", "h200_sxm", 400e9, 0.6, "eight cards of 400 Gb/s per node; share as for HDR"},
}};
constexpr std::array<std::string_view, 4> kNames{kBuiltIn[0].name, kBuiltIn[1].name, kBuiltIn[2].name, kBuiltIn[3].name};

const DeviceModel* find_device(std::string_view name) {
  const auto* found = std::find_if(kDevices.begin(), kDevices.end(), [&](const DeviceModel& device) { return device.name == name; });
  return found == kDevices.end() ? nullptr : found;
}

Cluster with_device(const DeviceModel& device) {
  Cluster cluster;
  cluster.device = device.name;
  cluster.peak_16 = device.peak_16;
  cluster.peak_32 = device.peak_32;
  cluster.peak_8 = device.peak_8;
  cluster.bandwidth = device.bandwidth;
  cluster.memory = device.memory;
  cluster.link = device.link;
  cluster.host_link = device.host_link;
  cluster.host_bandwidth = kHostBandwidth;
  cluster.host_memory = device.host_memory;
  cluster.launch = kLaunch;
  cluster.product_share = kProductShare;
  cluster.product_half = kProductHalf;
  cluster.contention = kContention;
  return cluster;
}

std::string rate_text(double bytes) { return bytes == 0 ? "none" : cat(number_text(std::round(bytes / 1e7) / 100), " GB/s"); }

}  // namespace

double Cluster::peak(DType dtype) const {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16: return peak_16;
    case DType::kI8:
    case DType::kU8: return peak_8 > 0 ? peak_8 : peak_32;
    default: return peak_32;
  }
}

double Cluster::product_seconds(double flops, double extent, DType dtype) const {
  const double share = product_half > 0 ? product_share * extent / (extent + product_half) : product_share;
  return flops / (peak(dtype) * share);
}

void ByteRate::parse(std::string_view text) {
  const auto ends = [&](std::string_view end) { return text.size() > end.size() && text.ends_with(end); };
  const bool bits = ends("b/s");
  GALLEY_CHECK(bits || ends("B/s"), "'", text, "' is not a rate; write bytes as 230GB/s, or bits as 400Gb/s");
  std::string amount(text.substr(0, text.size() - 3));
  if (bits) amount += "B";  // parse_bytes reads the factor
  bytes = static_cast<double>(parse_bytes(amount)) / (bits ? 8 : 1);
  GALLEY_CHECK(bytes > 0, "'", text, "' is not above 0");
}

std::string ByteRate::str() const { return cat(number_text(bytes / 1e9), "GB/s"); }

void ClusterOptions::options(OptionVisitor& v) {
  v.option(
      {.name = "gpu", .doc = "device model: a100_40gb, a100_80gb, h100_sxm, h100_96gb_500w or h200_sxm", .required = true, .main = true},
      gpu);
  v.option({.name = "per_node", .doc = "devices of a node", .min = 1, .max = 4096}, per_node);
  v.option({.name = "link", .doc = "bus bandwidth of a ring over the devices of a node; default: of the device model"}, link);
  v.option({.name = "network", .doc = "bandwidth into one node; default: eight cards of 200Gb/s"}, network);
  v.text({.name = "network_share", .doc = "part of the network's bandwidth that collectives reach"}, network_share);
  v.option({.name = "memory", .doc = "memory of a device that a program can use; default: of the device model"}, memory);
  v.option({.name = "host_memory", .doc = "memory of a node's host for offloaded states; default: of the usual node with that device"},
           host_memory);
  v.choice(
      {.name = "allocator",
       .doc = "static: memory is placed before the run; serialises: a caching allocator that frees all when it finds no block, so that "
              "gathers do not run beside computation"},
      allocator, kAllocators);
}

Cluster make_cluster(const ClusterOptions& options, std::string name) {
  const DeviceModel* device = find_device(options.gpu);
  if (device == nullptr) {
    std::vector<std::string> names;
    std::string all;
    for (const DeviceModel& known : kDevices) {
      names.emplace_back(known.name);
      all += cat(all.empty() ? "" : ", ", known.name);
    }
    const std::string near = nearest(options.gpu, names);
    Error error(ErrorCode::kRecipe, cat("'gpu' is '", options.gpu, "', but the device models are ", all));
    error.key("gpu");
    if (!near.empty()) error.suggest(cat("did you mean '", near, "'?"));
    throw error;
  }
  Cluster cluster = with_device(*device);
  cluster.name = std::move(name);
  cluster.per_node = options.per_node;
  if (options.link) cluster.link = options.link->bytes;
  cluster.network = options.network ? options.network->bytes : 200e9;
  cluster.network_share = options.network_share.percent / 100;
  if (!(cluster.network_share > 0 && cluster.network_share <= 1))
    throw Error(ErrorCode::kRecipe, cat("'network_share' is ", options.network_share.str(), "; it must be above 0% and at most 100%"))
        .key("network_share");
  if (options.memory) cluster.memory = static_cast<double>(options.memory->bytes);
  if (options.host_memory) cluster.host_memory = static_cast<double>(options.host_memory->bytes);
  cluster.allocator = options.allocator;
  return cluster;
}

Cluster local_cluster(const LocalRates& rates, int64_t ranks) {
  GALLEY_ASSERT(ranks >= 1);
  Cluster cluster;
  const auto sharing = static_cast<double>(ranks);
  cluster.name = "local";
  cluster.device = "cpu";
  cluster.per_node = 4096;
  cluster.peak_32 = rates.f32 / sharing;
  cluster.peak_16 = (rates.bf16 > 0 ? rates.bf16 : rates.f32) / sharing;
  cluster.bandwidth = rates.bytes / sharing;
  cluster.memory = rates.memory / sharing;
  cluster.host_link = cluster.bandwidth;
  cluster.host_bandwidth = rates.bytes;
  // A reduction in shared memory reads one segment of each rank and writes it: measured 13 GB/s for two ranks where plain loops reach 40.
  cluster.link = rates.bytes / 3;
  cluster.latency = kLocalLatency * (sharing > static_cast<double>(rates.cores) ? 8 : 1);
  cluster.product_share = 0.85;
  cluster.product_half = 24;
  cluster.overlaps = false;
  cluster.shared_memory = true;
  return cluster;
}

std::span<const std::string_view> built_in_clusters() { return kNames; }
std::span<const DeviceModel> device_models() { return kDevices; }

std::optional<Cluster> find_cluster(std::string_view name) {
  const auto* found = std::find_if(kBuiltIn.begin(), kBuiltIn.end(), [&](const BuiltIn& row) { return row.name == name; });
  if (found == kBuiltIn.end()) return std::nullopt;
  Cluster cluster = with_device(*find_device(found->device));
  cluster.name = found->name;
  cluster.network = found->network;
  cluster.network_share = found->share;
  return cluster;
}

std::vector<ClusterFact> cluster_facts(const Cluster& cluster) {
  const DeviceModel* device = find_device(cluster.device);
  const std::string of_device = device != nullptr ? std::string(device->source) : "measured on this machine by galley-benchmark machine";
  const auto* built_in = std::find_if(kBuiltIn.begin(), kBuiltIn.end(), [&](const BuiltIn& row) { return row.name == cluster.name; });
  const std::string of_network = built_in != kBuiltIn.end() ? std::string(built_in->source)
                                 : cluster.network > 0      ? "the cluster file"
                                                            : "one machine";
  const auto tera = [](double flops) { return cat(number_text(std::round(flops / 1e9) / 1e3), " TFLOP/s"); };
  std::vector<ClusterFact> facts{
      {"device", cluster.device, of_device},
      {"peak of 16-bit products", tera(cluster.peak_16), of_device},
      {"peak of f32 products", tera(cluster.peak_32), of_device},
      {"memory bandwidth", rate_text(cluster.bandwidth), of_device},
      {"memory", human_bytes(cluster.memory), of_device},
      {"link in a node", rate_text(cluster.link),
       device != nullptr ? of_device : "a third of the memory bandwidth: reads of each rank, and a write"},
      {"network of a node", rate_text(cluster.network), of_network},
      {"share of the network", cat(number_text(100 * cluster.network_share), "%"), of_network},
      {"largest share of the peak", number_text(cluster.product_share),
       device != nullptr ? "cuBLAS on random data at the power limit: 235 to 240 of 312 TFLOP/s" : "oneDNN on large products"},
      {"extent of half that share", number_text(cluster.product_half), "fit to published rates of layers of 1024 to 25600"},
      {"rate beside collectives", number_text(cluster.contention), "assumption: collectives take multiprocessors and bandwidth"},
      {"host memory", cluster.host_memory > 0 ? human_bytes(cluster.host_memory) : "that of the device",
       "for offloaded states, all ranks of a node; data sheets of the usual nodes: p4d 1152 GiB, DGX 2 TB"},
      {"host memory bandwidth", rate_text(cluster.host_bandwidth), "assumption: 40 % of the peak of two sockets"},
      {"allocator", std::string(kAllocators[static_cast<size_t>(cluster.allocator)]), "cluster.allocator"}};
  return facts;
}

}  // namespace galley
