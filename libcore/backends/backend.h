#pragma once
// Backend: how programs are computed on a device. It knows the kernels of every operator, and rewrites graphs to the forms for which it has
// fast ones.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/backends/kernel.h"
#include "libcore/backends/runner.h"
#include "libcore/device/device.h"
#include "libcore/passes/target.h"

namespace galley {

struct BackendOptions {
  int threads = 0;                               ///< Logical threads; 0: compute_threads(). Kernels and their blocking depend on them.
  LayoutMode memory_format = LayoutMode::kAuto;  ///< How images will be laid out.
  bool winograd = true;                          ///< 3 x 3 convolutions may take fewer products (the recipe's precision.winograd).
  bool chains = true;                            ///< Element-wise functions may run as chains (the recipe's precision.chains).
  int index = 0;                                 ///< Of several devices of a kind: the number after the colon in "cuda:1".
};

struct Limits {
  int threads = 1;         ///< Logical threads of a program.
  int64_t alignment = 64;  ///< Of every value, in bytes.
};

/// The kernel that computes a node, and why those before it do not.
struct KernelChoice {
  const Kernel* kernel = nullptr;     ///< nullptr: none supports the node.
  std::vector<std::string> declined;  ///< "onednn: groups"
  /// `declined` in one line: "onednn: groups; cpu: rank 6".
  std::string reasons() const;
};

/// Immutable: programs may be compiled with it in several threads at once.
class Backend : public Target {
 public:
  explicit Backend(const BackendOptions& options);

  /// As `device:` in recipes names it: "cpu".
  virtual std::string_view name() const = 0;
  /// All kernels are references: slow, for any type and format.
  virtual bool reference() const { return false; }
  /// All kernels of an operator, in order of preference, the reference last.
  virtual std::span<const Kernel* const> kernels(const OpDef& op) const = 0;
  virtual Limits limits() const;
  /// Where its programs run.
  virtual Device& device() const { return host_device(); }
  /// What enqueues the kernels of a bound program, which outlives it. Default: one after the other.
  virtual std::unique_ptr<Runner> runner(const BoundProgram& program) const;
  const BackendOptions& options() const { return options_; }

  KernelQuery query(const Graph& graph, const Node& node) const;
  /// The first kernel that supports the node.
  KernelChoice choose(const KernelQuery& query) const;

  // Target, by the kernels and their preferences.
  bool has_kernel(const Graph& graph, const Node& node, Stage stage) const override;
  std::string refusal(const Graph& graph, const Node& node, Stage stage) const override;
  MemoryFormat weight_format(const Graph& graph, const Node& node, int input) const override;
  MemoryFormat output_format(const Graph& graph, const Node& node, int output) const override;

 private:
  BackendOptions options_;
};

/// A back end that recipes can name.
struct BackendRow {
  std::string_view name;
  std::string_view doc;
  bool indexed;  ///< There may be several such devices: "cuda:1".
  /// Throws Error (kResource) where the device is not there.
  std::unique_ptr<Backend> (*open)(const BackendOptions& options);
};

/// All back ends of this build.
std::span<const BackendRow> backend_rows();
/// The back end of a device by its name in recipes: "cpu", "ref", "cuda:1". Throws Error (kResource), saying what was looked for, where
/// there is none. Default: the first of the build, which is the CPU unless the build has none.
std::shared_ptr<const Backend> open_backend(std::string_view device = backend_rows().front().name, BackendOptions options = {});

}  // namespace galley
