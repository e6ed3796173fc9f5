// The node cases of the ONNX project's back-end tests (https://github.com/onnx/onnx, onnx/backend/test/data/node), as installed by Debian's
// package libonnx-testdata: each case computes the right result, or the file is rejected with a reason. docs/onnx_nodes.md counts the cases
// by operator.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <protozero/pbf_reader.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/onnx/onnx.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/onnx/records.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

namespace fs = std::filesystem;
using namespace onnx_records;

// Tolerances of onnx.backend.test.loader: float32 results with other orders of summation.
constexpr double kRelative = 1e-3, kAbsolute = 1e-7;
constexpr const char* kPackage = "/usr/share/libonnx-testdata/data/node";
constexpr const char* kTable = GALLEY_SOURCE_DIR "/docs/onnx_nodes.md";

std::string folder() {
  const char* given = std::getenv("GALLEY_ONNX_NODES");
  return given != nullptr ? given : kPackage;
}

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The tensor in a file, as the value of that name.
std::string named(const std::string& tensor_bytes, const std::string& name) { return tensor_bytes + bytes(8, name); }

struct Case {
  std::string name, model, op;
  std::vector<std::string> inputs, outputs;  // names of the graph's
  std::vector<std::string> input_bytes, output_bytes;
};

std::vector<std::string> data_files(const fs::path& set, const std::string& kind) {
  std::vector<std::string> files;
  for (int i = 0; fs::exists(set / cat(kind, "_", i, ".pb")); ++i) files.push_back(read_bytes(set / cat(kind, "_", i, ".pb")));
  return files;
}

Case read_case(const fs::path& path) {
  Case found{.name = path.filename().string(),
             .model = read_bytes(path / "model.onnx"),
             .op = {},
             .inputs = {},
             .outputs = {},
             .input_bytes = {},
             .output_bytes = {}};
  int nodes = 0;
  for (protozero::pbf_reader model(found.model); model.next();) {
    if (model.tag() != 7) {
      model.skip();
      continue;
    }
    for (protozero::pbf_reader graph = model.get_message(); graph.next();) {
      const auto tag = graph.tag();
      if (tag != 1 && tag != 11 && tag != 12) {
        graph.skip();
        continue;
      }
      protozero::pbf_reader record = graph.get_message();
      nodes += tag == 1 ? 1 : 0;
      while (record.next()) {
        if (tag == 1 && record.tag() == 4) {
          found.op = record.get_string();
        } else if (tag != 1 && record.tag() == 1) {
          (tag == 11 ? found.inputs : found.outputs).push_back(record.get_string());
        } else {
          record.skip();
        }
      }
    }
  }
  if (nodes != 1) found.op = "several nodes";
  found.input_bytes = data_files(path / "test_data_set_0", "input");
  found.output_bytes = data_files(path / "test_data_set_0", "output");
  return found;
}

/// The model with some inputs as initializers; if no input is left, it gets one that nothing reads.
std::string bind_inputs(const Case& c, const std::vector<bool>& bound) {
  std::string added, bytes_of_model;
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i]) added += initializer(named(c.input_bytes[i], c.inputs[i]));
  }
  if (std::find(bound.begin(), bound.end(), false) == bound.end())
    added += input(bytes(1, "unused") + bytes(2, bytes(1, number(1, 1) + bytes(2, bytes(1, number(1, 1))))));
  for (protozero::pbf_reader model(c.model); model.next();) {
    if (model.tag() == 7) {
      bytes_of_model += bytes(7, model.get_string() + added);
    } else if (model.tag() == 8) {
      bytes_of_model += bytes(8, model.get_string());
    } else {
      model.skip();
    }
  }
  return number(1, 8) + bytes_of_model;
}

/// Tensors of data files. Throws Error if Galley does not support a type.
std::vector<Tensor> read_tensors(const std::vector<std::string>& files, const TemporaryFolder& temporary) {
  std::string graph;
  for (size_t i = 0; i < files.size(); ++i) graph += initializer(named(files[i], cat(i)));
  std::ofstream(temporary / "data.onnx", std::ios::binary) << model(graph);
  const OnnxFile file(temporary / "data.onnx");
  std::vector<Tensor> tensors;
  for (const OnnxTensor& tensor : file.model().initializers) tensors.push_back(file.read(tensor).clone());
  return tensors;
}

Tensor with_shape(const Tensor& x, const Shape& shape) {
  return Tensor(x.dtype(), shape, {}, x.storage(), static_cast<const std::byte*>(x.data()) - x.storage()->data());
}
Tensor first_row(const Tensor& x) {
  Shape shape = x.shape();
  shape[0] = 1;
  return with_shape(x, shape);
}

/// "" if both are equal within the suite's tolerance.
std::string difference(const Tensor& got, const Tensor& expected) {
  if (got.shape() != expected.shape()) return cat("the shape ", got.shape(), " for ", expected.shape());
  if (got.dtype() != expected.dtype()) return cat("the type ", got.dtype(), " for ", expected.dtype());
  const std::vector<double> x = got.to_doubles(), y = expected.to_doubles();
  for (size_t i = 0; i < x.size(); ++i) {
    const bool equal =
        x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i])) || std::fabs(x[i] - y[i]) <= kAbsolute + kRelative * std::fabs(y[i]);
    if (!equal) return cat("element ", i, " is ", x[i], " for ", y[i]);
  }
  return "";
}

struct Verdict {
  enum class Kind { kRight, kRefused, kWrong } kind = Kind::kRefused;
  std::string text;
};

/// Describes how results are wrong; `row`: they belong to the first sample only.
std::string compare(const Case& c, std::map<std::string, Tensor> results, const std::vector<Tensor>& expected, bool whole, bool row) {
  for (size_t i = 0; i < expected.size(); ++i) {
    Tensor got = results.at(c.outputs[i]);
    if (whole) got = with_shape(got, Shape(got.shape().sizes().subspan(1)));
    const std::string text = difference(got, row ? first_row(expected[i]) : expected[i]);
    if (!text.empty()) return cat(row ? "the first sample alone: " : "", "output '", c.outputs[i], "' has ", text);
  }
  return "";
}

Verdict run_bound(const Case& c, const std::vector<bool>& bound) {
  const TemporaryFolder temporary;
  const std::string path = temporary / "m.onnx";
  std::ofstream(path, std::ios::binary) << bind_inputs(c, bound);
  try {
    const Component component = onnx_component(path);
    const ModelInfo info = model_info(component);
    std::vector<Tensor> fed;
    const std::vector<Tensor> given = read_tensors(c.input_bytes, temporary), expected = read_tensors(c.output_bytes, temporary);
    for (size_t i = 0; i < bound.size(); ++i) {
      if (!bound[i]) fed.push_back(given[i]);
    }
    const std::vector<ModelInput> inputs = info.all_inputs();
    if (fed.empty()) fed.push_back(Tensor(DType::kF32, {1}));
    const bool whole = fed.front().shape().rank() == static_cast<int>(inputs.front().shape.size());
    std::vector<Tensor> rows;
    for (Tensor& tensor : fed) {
      Shape shape{1};
      for (const int64_t size : tensor.shape()) shape.push_back(size);
      if (whole) tensor = with_shape(tensor, shape);
    }
    std::string text = compare(c, compute_outputs(component, fed), expected, whole, false);
    if (text.empty() && !whole && info.fixed_batch == 0 && fed.front().shape()[0] > 1) {
      for (const Tensor& tensor : fed) rows.push_back(first_row(tensor));
      text = compare(c, compute_outputs(component, rows), expected, whole, true);
    }
    return {text.empty() ? Verdict::Kind::kRight : Verdict::Kind::kWrong, text};
  } catch (const Error& error) {
    return {Verdict::Kind::kRefused, error.message()};
  }
}

/// Feeds all inputs; or makes integer inputs constant (shapes, axes); or makes all inputs but the first constant, like weights.
Verdict run_case(const Case& c) {
  const size_t count = c.inputs.size();
  if (count != c.input_bytes.size()) return {Verdict::Kind::kRefused, cat(c.op, ": an optional input is not given")};
  std::vector<bool> none(count, false), integers(count, false), others(count, true);
  for (size_t i = 0; i < count; ++i) {
    int type = 1;
    for (protozero::pbf_reader tensor(c.input_bytes[i]); tensor.next();) {
      if (tensor.tag() == 2) {
        type = tensor.get_int32();
      } else {
        tensor.skip();
      }
    }
    integers[i] = type == 6 || type == 7 || type == 9;
  }
  if (count > 0) others[0] = false;
  Verdict verdict;
  for (const std::vector<bool>& bound : {none, integers, others}) {
    verdict = run_bound(c, bound);
    if (verdict.kind != Verdict::Kind::kRefused) return verdict;
  }
  return run_bound(c, none);
}

struct Count {
  int right = 0, refused = 0;
  std::string why;  // reason of the first rejection
};

std::string table_of(const std::map<std::string, Count>& counts) {
  int right = 0, refused = 0;
  std::string rows;
  for (const auto& [op, count] : counts) {
    right += count.right;
    refused += count.refused;
    rows += cat("| ", op, " | ", count.right, " | ", count.refused, " |\n");
  }
  return cat(
      "# ONNX node cases\n\nThe node cases of the ONNX project's back-end tests (version 1.12, opset up to 17), as Debian's package "
      "`libonnx-testdata` installs them.\n",
      "`tests/onnx/nodes` runs each: what is computed is compared as the suite does (relative 1e-3, absolute 1e-7: other orders of "
      "summation in\n",
      "float32), and a file that Galley does not take is refused by name. Inputs that a real file holds as constants (shapes, axes, "
      "scales) are\n",
      "bound as initializers where the node requires known values. Where the rows of a batch are samples, the first sample alone is "
      "computed, too.\n",
      "The table is written by that test (`GALLEY_WRITE_TABLES=1`), and compared by it.\n\n", right, " of ", right + refused,
      " are right, ", refused, " are refused, none is wrong.\n\n", "| operator | right | refused |\n|---|---|---|\n", rows);
}

TEST(OnnxNodes, AreRightOrRefusedByName) {
  if (!fs::exists(folder())) GTEST_SKIP() << folder() << " does not exist: install libonnx-testdata (scripts/setup does)";
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (fs::exists(entry.path() / "model.onnx")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  const char* only = std::getenv("GALLEY_ONNX_CASE");
  std::map<std::string, Count> counts;
  for (const fs::path& path : paths) {
    if (only != nullptr && path.filename().string().find(only) == std::string::npos) continue;
    const Case c = read_case(path);
    const Verdict verdict = run_case(c);
    Count& count = counts[c.op];
    if (verdict.kind == Verdict::Kind::kWrong) ADD_FAILURE() << c.name << ": " << verdict.text;
    (verdict.kind == Verdict::Kind::kRight ? count.right : count.refused) += 1;
    if (verdict.kind != Verdict::Kind::kRefused) continue;
    if (only != nullptr || std::getenv("GALLEY_ONNX_SHOW") != nullptr) std::printf("%s: %s\n", c.name.c_str(), verdict.text.c_str());
  }
  if (only != nullptr) return;
  const std::string table = table_of(counts);
  if (std::getenv("GALLEY_WRITE_TABLES") != nullptr) write_file(kTable, table);
  // Other versions of the package have different cases.
  if (paths.size() == 932) {
    EXPECT_EQ(read_file(kTable), table) << "set GALLEY_WRITE_TABLES=1 to update it";
  }
}

}  // namespace
}  // namespace galley
