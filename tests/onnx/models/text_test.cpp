// Laws: models of text that PyTorch exported (tests/golden/onnx_text, made by make_text.py there) compute the results of transformers, for
// any number of samples and tokens, and their attention is the operator; decoders generate the tokens of transformers, with their keys and
// values kept and without, alone and beside others.

#include <fstream>

#include "libcore/infer/components.h"
#include "libcore/infer/generate.h"
#include "libcore/recipe/recipe.h"
#include "libcore/weights/safetensors.h"
#include "tests/onnx/models/onnx_models.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

std::string golden(const std::string& file) { return GALLEY_SOURCE_DIR "/tests/golden/onnx_text/" + file; }

/// float32 rounding through two blocks of width 8 or 16.
constexpr double kTolerance = 1e-5;

/// The first `samples` rows of x [N,T], with `more` columns of zeros.
Tensor resized(const Tensor& x, int64_t samples, int64_t more) {
  const int64_t length = x.shape()[1];
  Tensor made(x.dtype(), {samples, length + more});
  for (int64_t i = 0; i < samples; ++i) {
    int64_t* row = made.data_as<int64_t>() + i * (length + more);
    std::fill_n(row, length + more, int64_t{0});
    std::copy_n(x.data_as<int64_t>() + i * length, length, row);
  }
  return made;
}

int64_t count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) { return node.is(op); });
}

class EncoderFiles : public testing::TestWithParam<std::string> {};

TEST_P(EncoderFiles, ComputeTheResultsOfTransformers) {
  const Component model = onnx_component(golden(GetParam() + ".onnx"));
  const SafetensorsFile expected(golden(GetParam() + ".safetensors"));
  const ModelInfo info = model_info(model);
  EXPECT_EQ(info.fixed_batch, 0) << "any number of samples";
  // The longest usual length within 40 positions; those of RoBERTa are computed, so that their number is not a shape.
  EXPECT_EQ(info.input_shape, std::vector<int64_t>{GetParam().starts_with("roberta") ? 128 : 32});
  for (const auto& [samples, more] : std::vector<std::pair<int64_t, int64_t>>{{3, 0}, {1, 0}, {2, 5}}) {
    SCOPED_TRACE(cat(samples, " samples, ", more, " tokens of padding"));
    std::vector<Tensor> inputs;
    for (const ModelInput& input : info.all_inputs()) inputs.push_back(resized(expected.read(input.name), samples, more));
    for (const auto& [name, got] : compute_outputs(model, inputs)) {
      const Tensor whole = expected.read(name);
      ASSERT_EQ(got.shape().rank(), whole.shape().rank());
      const int64_t rows = samples, width = whole.elements() / whole.shape()[0], stride = got.elements() / rows;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          ASSERT_NEAR(got.data_as<float>()[i * stride + j], whole.data_as<float>()[i * width + j],
                      kTolerance * std::max(1.0, largest(whole)))
              << name << " sample " << i << " element " << j;
        }
      }
    }
  }
}

TEST_P(EncoderFiles, HaveTheOperatorAttention) {
  const Component model = onnx_component(golden(GetParam() + ".onnx"));
  Graph graph;
  Builder b(graph, {.mode = Mode::kEvaluation});
  NamedValues inputs;
  for (const ModelInput& input : model_info(model).all_inputs())
    inputs.emplace_back(input.name, b.input(input.name, {.dtype = input.dtype, .shape = {2, 9}}));
  for (const auto& [name, value] : build_model(b, model, inputs)) graph.add_output(name, value);
  graph.remove_dead_nodes();
  EXPECT_EQ(count(graph, "attention"), 2);
  EXPECT_EQ(count(graph, "softmax"), 0);
  EXPECT_EQ(count(graph, "gelu"), GetParam().starts_with("roberta") ? 3 : 2);
}

INSTANTIATE_TEST_SUITE_P(Files, EncoderFiles,
                         testing::Values("bert", "bert_eager", "bert_dynamo", "distilbert", "roberta", "roberta_dynamo"),
                         [](const auto& info) { return info.param; });

class DecoderFiles : public testing::TestWithParam<std::string> {
 protected:
  /// A recipe with the file as its model, and a vocabulary of bytes.
  LoadedRecipe load() const {
    std::ofstream(folder_ / "recipe.yaml") << "recipe: 1\nthreads: 2\ndata: {tokenizer: byte}\nmodel: {type: onnx, path: "
                                           << golden(GetParam() + ".onnx") << "}\n";
    return load_recipe(folder_ / "recipe.yaml", recipe_components(), {});
  }
  static std::vector<int64_t> ids(const SafetensorsFile& file, const std::string& name) {
    const Tensor values = file.read(name);
    return {values.data_as<int64_t>(), values.data_as<int64_t>() + values.elements()};
  }
  /// Files of GPT-Neo have their masks as tables, and read whole sequences.
  static bool continues() { return !GetParam().starts_with("gpt_neo"); }
  const TemporaryFolder folder_;
};

TEST_P(DecoderFiles, GenerateTheTokensOfTransformers) {
  const SafetensorsFile expected(golden(GetParam() + ".safetensors"));
  const LoadedRecipe loaded = load();
  Session session(loaded.recipe);
  EXPECT_EQ(session.info().cache, continues());
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "with a cache" : "without");
    LanguageModel model(session, cache);
    std::vector<std::vector<int64_t>> rows, wanted;
    for (int i = 0; i < 3; ++i) {
      rows.push_back(ids(expected, cat("prompt.", i)));
      wanted.push_back(rows.back());
      for (const int64_t token : ids(expected, cat("new.", i))) wanted.back().push_back(token);
    }
    const size_t prompt = rows[0].size();
    for (size_t step = 0; step < wanted[0].size() - prompt; ++step) {
      const Tensor logits = model.next_logits(rows);
      const int64_t vocabulary = logits.shape()[1];
      for (size_t i = 0; i < rows.size(); ++i) {
        const float* row = logits.data_as<float>() + static_cast<int64_t>(i) * vocabulary;
        rows[i].push_back(std::max_element(row, row + vocabulary) - row);
      }
    }
    EXPECT_EQ(rows, wanted);
    // A row that goes on from a part of what the cache holds.
    std::vector<std::vector<int64_t>> back(rows.begin(), rows.end());
    for (size_t i = 0; i < back.size(); ++i) back[i].resize(back[i].size() - 3 - i);
    const Tensor again = model.next_logits(back);
    for (size_t i = 0; i < back.size(); ++i) {
      const float* row = again.data_as<float>() + static_cast<int64_t>(i) * again.shape()[1];
      EXPECT_EQ(std::max_element(row, row + again.shape()[1]) - row, rows[i][back[i].size()]) << i;
    }
  }
}

TEST_P(DecoderFiles, ComputeTheLogitsOfTransformers) {
  const Component model = onnx_component(golden(GetParam() + ".onnx"));
  const SafetensorsFile expected(golden(GetParam() + ".safetensors"));
  EXPECT_EQ(model_info(model).input_shape, std::vector<int64_t>{GetParam().starts_with("gpt") ? 64 : 1024});
  const Tensor logits = expected.read("logits");
  const double difference = largest_difference(compute(capture(model, {1, 4}, DType::kI64), expected.read("ids")), logits);
  EXPECT_TRUE(difference <= kTolerance * largest(logits)) << difference << " of " << largest(logits);
}

/// Files whose attention is recognized. That of GPT-Neo runs as it is written: a table says where scores are replaced.
class CachedDecoderFiles : public DecoderFiles {};

TEST_P(CachedDecoderFiles, HaveTheOperatorAttention) {
  const Component model = onnx_component(golden(GetParam() + ".onnx"));
  for (const int64_t cache : {0, 16}) {
    Graph graph;
    Builder b(graph, {.mode = Mode::kEvaluation, .cache = cache});
    for (const auto& [name, value] : build_model(b, model, b.input("input", {.dtype = DType::kI64, .shape = {2, 3}})))
      graph.add_output(name, value);
    graph.remove_dead_nodes();
    EXPECT_EQ(count(graph, "attention"), 2) << cache;
    EXPECT_EQ(count(graph, "softmax"), 0) << cache;
    EXPECT_EQ(count(graph, "cached_attention"), cache > 0 ? 2 : 0) << "it stores keys and values";
    for (const Node& node : graph.nodes()) {
      if (node.is("attention")) {
        // Llama's four query heads share two heads of keys, Falcon's share one; they are not repeated. The cache has keys and values in
        // one array.
        EXPECT_EQ(graph.type(node.inputs[1]).shape[2], (GetParam() == "falcon" ? 1 : 2) * (cache > 0 ? 2 : 1));
        EXPECT_EQ(graph.type(node.inputs[1]).shape[1], cache > 0 ? cache : 3);
        EXPECT_EQ(node.input(2) == kNoValue, cache > 0);
      } else if (cache > 0 && !node.is("cached_attention")) {
        // Nothing else reads or makes arrays of the cache's rows and features.
        const Shape& made = graph.type(node.outputs[0]).shape;
        EXPECT_FALSE(made.rank() == 4 && made[3] > 1 && made[3] < cache && (made[1] >= cache || made[2] >= cache)) << node.op->name << made;
      }
    }
  }
}

const std::vector<std::string> kCached{"gpt2", "llama", "qwen3", "phi", "falcon", "llama_dynamo", "qwen3_dynamo"};
INSTANTIATE_TEST_SUITE_P(Files, DecoderFiles, testing::ValuesIn(kCached), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Tables, DecoderFiles, testing::Values("gpt_neo", "gpt_neo_dynamo"), [](const auto& info) { return info.param; });
INSTANTIATE_TEST_SUITE_P(Files, CachedDecoderFiles, testing::ValuesIn(kCached), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace galley
