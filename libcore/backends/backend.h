#pragma once
// Backend: how programs are computed on a device. It lists the kernels of every operator, and rewrites graphs to forms for which it has
// fast kernels.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/backends/kernel.h"
#include "libcore/backends/runner.h"
#include "libcore/comm/device_ranks.h"
#include "libcore/device/device.h"
#include "libcore/passes/target.h"

namespace galley {

struct BackendOptions {
  int threads = 0;  ///< Logical threads; 0: compute_threads(). The choice of kernels and their blocking depend on it.
  LayoutMode memory_format = LayoutMode::kAuto;  ///< The memory format of images.
  bool winograd = true;                          ///< 3 x 3 convolutions may use Winograd's algorithm (the recipe's precision.winograd).
  bool chains = true;                            ///< Element-wise functions may be fused into chains (the recipe's precision.chains).
  bool int4_products = true;   ///< Activations may be rounded for weights of 4 bits (the recipe's precision.int4_activations).
  bool int8_products = false;  ///< The same for weights of 8 bits (precision.int8_activations).
  bool tf32 = false;           ///< GPUs: products of f32 may round their operands to TF32 (the recipe's precision.tf32).
  bool deterministic = true;   ///< GPUs: equal inputs give equal bits in each run (the recipe's deterministic).
  AttentionAlgorithm attention = AttentionAlgorithm::kAuto;  ///< Of attention that does not name its algorithm (the recipe's attention).
  int index = 0;                                             ///< The number after the colon in "cuda:1", if there are several such devices.
};

struct Limits {
  int threads = 1;         ///< Logical threads of a program.
  int64_t alignment = 64;  ///< Of the address of every value, in bytes.
};

/// The kernel for a node, and why the kernels before it in the table decline.
struct KernelChoice {
  const Kernel* kernel = nullptr;     ///< nullptr: no kernel supports the node.
  std::vector<std::string> declined;  ///< "onednn: groups"
  /// `declined` in one line: "onednn: groups; cpu: rank 6".
  std::string reasons() const;
};

/// Immutable: several threads may compile programs with it at once.
class Backend : public Target {
 public:
  explicit Backend(const BackendOptions& options);

  /// The name of the device in recipes: "cpu".
  virtual std::string_view name() const = 0;
  /// Are all of its kernels references: slow, for any dtype and format?
  virtual bool reference() const { return false; }
  /// All kernels of an operator, in order of preference, the reference last.
  virtual std::span<const Kernel* const> kernels(const OpDef& op) const = 0;
  virtual Limits limits() const;
  /// The device on which its programs run.
  virtual Device& device() const { return host_device(); }
  /// Makes the object that enqueues the kernels of a bound program. The program must outlive it. Default: one kernel after the other.
  virtual std::unique_ptr<Runner> runner(const BoundProgram& program) const;
  /// Connects the devices of ranks, each of which calls it. `before`: an earlier connection of the rank, with whose collectives those of
  /// the new one are in one order on all ranks, and which outlives it; nullptr: none. Default: nullptr, since collectives of the host reach
  /// the memory. Throws Error (kResource, kWorker).
  virtual std::unique_ptr<DeviceRanks> connect(Communicator& ranks, DeviceRanks* before) const;
  const BackendOptions& options() const { return options_; }

  KernelQuery query(const Graph& graph, const Node& node) const;
  /// The first kernel that supports the node.
  KernelChoice choose(const KernelQuery& query) const;

  AttentionAlgorithm attention() const override { return options_.attention; }

  // Target: answered by the kernels.
  bool has_kernel(const Graph& graph, const Node& node, Stage stage) const override;
  std::string refusal(const Graph& graph, const Node& node, Stage stage) const override;
  MemoryFormat weight_format(const Graph& graph, const Node& node, int input) const override;
  MemoryFormat output_format(const Graph& graph, const Node& node, int output) const override;

 private:
  BackendOptions options_;
};

/// A back end that recipes can select.
struct BackendRow {
  std::string_view name;
  std::string_view doc;
  bool indexed;  ///< There may be several such devices: "cuda:1".
  /// Throws Error (kResource) if there is no such device.
  std::unique_ptr<Backend> (*open)(const BackendOptions& options);
  /// What it needs of the machine, and whether that was found, in one line, for `--version -v`; nullptr: nothing.
  std::string (*requirements)() = nullptr;
};

/// All back ends of this build.
std::span<const BackendRow> backend_rows();
/// Opens the back end of a device by its name in recipes: "cpu", "ref", "cuda:1". Throws Error (kResource) if there is none. Default: the
/// first of the build, which is the CPU unless the build has no CPU back end.
std::shared_ptr<const Backend> open_backend(std::string_view device = backend_rows().front().name, BackendOptions options = {});

}  // namespace galley
