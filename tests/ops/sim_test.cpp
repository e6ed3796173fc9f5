// Every operator of the case tables on the sim device, whose kernels run asynchronously on a protected heap: results are bit-identical to
// the reference.

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string_view>

#include "libcore/backends/ref/memory.h"
#include "libcore/device/sim_device.h"
#include "tests/ops/harness.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

const Backend& sim() {
  static const std::shared_ptr<const Backend> backend = open_backend("sim");
  return *backend;
}

/// The bytes of the outputs of one node on a back end. Copies inputs to its device and outputs back.
std::vector<std::vector<std::byte>> run_on(const Backend& backend, const Graph& graph, const Node& node,
                                           const std::map<ValueId, RefArray>& values) {
  Device& device = backend.device();
  Stream& stream = device.stream();
  std::vector<std::shared_ptr<Storage>> kept;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (ValueId id : node.inputs) {
    inputs.push_back(nullptr);
    if (id == kNoValue) continue;
    const int64_t bytes = graph.type(id).bytes();
    std::vector<std::byte> content(static_cast<size_t>(bytes));
    write_array(graph.type(id), values.at(id), content.data());
    inputs.back() = kept.emplace_back(Storage::allocate(bytes, device))->address();
    stream.copy(const_cast<void*>(inputs.back()), content.data(), bytes);
  }
  for (ValueId id : node.outputs) outputs.push_back(kept.emplace_back(Storage::allocate(graph.type(id).bytes(), device))->address());
  const KernelQuery query = backend.query(graph, node);
  const std::unique_ptr<PreparedKernel> kernel = backend.choose(query).kernel->prepare(query);
  const auto scratch = Storage::allocate(kernel->scratch_bytes(), device);
  kernel->run(stream, {inputs, outputs, scratch->address()});
  std::vector<std::vector<std::byte>> made;
  for (size_t o = 0; o < outputs.size(); ++o) {
    made.emplace_back(static_cast<size_t>(graph.type(node.outputs[o]).bytes()));
    stream.copy(made.back().data(), outputs[o], static_cast<int64_t>(made.back().size()));
  }
  stream.synchronize();
  return made;
}

TEST(SimKernels, GiveTheReferencesBitsForEveryCase) {
  std::set<std::string_view> tried;
  for (const OpCase& c : all_cases()) {
    for (const DType real : {DType::kF32, DType::kBF16}) {  // the dtypes in which kernels run the cases
      if (real == DType::kBF16 && !c.low_precision) continue;
      const std::unique_ptr<CaseGraph> made = make_graph(c, real, true);
      const std::map<ValueId, RefArray> values = interpret(made->graph, made->feeds, /*round=*/true);
      for (const Node& node : made->graph.nodes()) {
        if (sim().kernels(*node.op).empty()) continue;
        EXPECT_EQ(run_on(sim(), made->graph, node, values), run_on(ref(), made->graph, node, values))
            << c.name << " in " << real << ": " << node.op->name;
        tried.insert(node.op->name);
      }
    }
  }
  for (const OpDef* op : all_ops()) EXPECT_EQ(tried.count(op->name), ref().kernels(*op).empty() ? 0u : 1u) << op->name;
}

}  // namespace
}  // namespace galley::test
