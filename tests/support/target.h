#pragma once
// A target for tests, which answers queries by functions.

#include <cstdlib>
#include <functional>

#include "libcore/backends/backend.h"
#include "libcore/passes/target.h"

namespace galley::test {

struct FakeTarget : Target {
  std::function<bool(const Graph&, const Node&)> kernel = [](const Graph&, const Node&) { return true; };
  std::function<std::string(const Graph&, const Node&, Stage)> refuse = [](const Graph&, const Node&, Stage) { return ""; };
  std::function<MemoryFormat(const Graph&, const Node&)> weight = [](const Graph&, const Node&) { return MemoryFormat(); };
  std::function<MemoryFormat(const Graph&, const Node&)> output = [](const Graph&, const Node&) { return MemoryFormat(); };

  AttentionAlgorithm algorithm = AttentionAlgorithm::kAuto;

  /// Registers the operators of all back ends.
  FakeTarget() { open_backend(); }
  /// A target with kernels for nodes for which `has` returns true.
  explicit FakeTarget(std::function<bool(const Graph&, const Node&)> has) : FakeTarget() { kernel = std::move(has); }

  bool has_kernel(const Graph& graph, const Node& node, Stage) const override { return kernel(graph, node); }
  std::string refusal(const Graph& graph, const Node& node, Stage stage) const override { return refuse(graph, node, stage); }
  AttentionAlgorithm attention() const override { return algorithm; }
  MemoryFormat weight_format(const Graph& graph, const Node& node, int) const override { return weight(graph, node); }
  MemoryFormat output_format(const Graph& graph, const Node& node, int) const override { return output(graph, node); }
};

/// Targets with kernels for all nodes, and for none.
inline const FakeTarget kAnyKernel{}, kNoKernel{[](const Graph&, const Node&) { return false; }};

/// The CPU back end with default options; in a build without it, the reference.
inline const Backend& cpu() {
  static const std::shared_ptr<const Backend> backend = open_backend(backend_rows().front().name);
  return *backend;
}

/// The back ends of this build. TSan's build has no "cpu"; "cuda" is one of them where the environment names a driver (ctest: the
/// stand-in).
inline std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const BackendRow& row : backend_rows()) {
    if (row.name != "cuda" || std::getenv("GALLEY_CUDA_DRIVER") != nullptr) names.emplace_back(row.name);
  }
  return names;
}
inline bool has_cpu() { return device_names().front() == "cpu"; }

inline const Backend& ref() {
  static const std::shared_ptr<const Backend> backend = open_backend("ref");
  return *backend;
}

}  // namespace galley::test
