// Law: a step on a batch that is cut to one of several lengths is the step on the same batch at full length, to rounding.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "libcore/data/loader.h"
#include "libcore/runtime/parameter_store.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

class Buckets : public testing::Test {
 protected:
  Buckets() {
    std::ofstream vocabulary(folder_ / "vocab.txt"), rows(folder_ / "rows.tsv");
    for (const char* piece : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) vocabulary << piece << "\n";
    for (int i = 0; i < 20; ++i) vocabulary << "w" << i << "\n";
    for (int row = 0; row < 60; ++row) {
      for (int i = 0; i <= row % 15; ++i) rows << "w" << (row * 7 + i) % 20 << " ";
      rows << "\t" << row % 2 << "\n";
    }
  }
  LoadedRecipe recipe(const std::string& item, const std::string& extra = "") const {
    return test::load_text(
        cat("recipe: 1\nmodel: {type: bert, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
            "intermediate_size: 24, max_position_embeddings: 20, hidden_dropout_prob: 0, attention_probs_dropout_prob: 0, "
            "classifier_dropout: 0, head: sequence_classification}\ndata:\n  tokenizer: {type: wordpiece, path: ",
            folder_ / "vocab.txt", "}\n  train:\n    source: {type: text_pairs, path: ", folder_ / "rows.tsv",
            ", columns: {label: 1}, max_length: 20}\n    pipeline: [{type: rename, from: input, to: input_ids}, ", item,
            "]\ntrain: {duration: 20 steps, batch: 4, optimizer: {type: adamw, lr: 0.01, eps: 0.0001}}\n", extra),
        {"threads=2"});
  }
  TemporaryFolder folder_;
};

/// The batch with its padded fields at full length.
Batch at_full_length(const Batch& cut, const std::map<std::string, Tensor>& layout) {
  Batch batch = cut;
  for (auto& [name, tensor] : batch.fields) {
    const Tensor& full = layout.at(name);
    if (tensor.shape() == full.shape()) continue;
    Tensor wide(full.dtype(), full.shape());
    std::memset(wide.data(), 0, static_cast<size_t>(wide.bytes()));
    const int64_t rows = wide.shape()[0], to = wide.bytes() / rows, from = tensor.bytes() / rows;
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(static_cast<std::byte*>(wide.data()) + row * to, static_cast<const std::byte*>(tensor.data()) + row * from,
                  static_cast<size_t>(from));
    tensor = wide;
  }
  return batch;
}

TEST_F(Buckets, ACutBatchGivesTheSameStep) {
  const LoadedRecipe loaded = recipe("{type: bucket, lengths: [6, 12, 20]}");
  Session session(loaded.recipe);
  const std::unique_ptr<DataLoader> loader = session.training_loader(4, 0);
  ASSERT_EQ(loader->lengths(), (std::vector<int64_t>{6, 12, 20}));
  const BatchTypes types = session.batch_types(*loader);
  EXPECT_EQ(types.fields.at("input_ids").shape, (Shape{4, 20}));
  const BatchPlan plan{.global = 4, .micro = 4, .accumulation = 1};
  const RunLength length{.total_steps = 20, .steps_per_epoch = 15, .samples_per_step = 4};
  Engine first(session.backend()), second(session.backend());
  TrainStep buckets(session, first, types, plan, length, {session.all_batch_types(*loader)[1], session.all_batch_types(*loader)[2]});
  TrainStep padded(session, second, types, plan, length);
  for (TrainStep* each : {&buckets, &padded}) {
    each->initialize();
    each->bind();
  }
  EXPECT_EQ(first.compilations().size(), 3u);
  std::set<int64_t> lengths;
  for (int64_t step = 1; step <= 20; ++step) {
    const Batch* batch = loader->next();
    lengths.insert(batch->at("input_ids").shape()[1]);
    const Batch full = at_full_length(*batch, loader->layout());
    const auto cut = buckets.run(step, [&]() -> const Batch& { return *batch; });
    const auto whole = padded.run(step, [&]() -> const Batch& { return full; });
    // Sums over 4 x 20 tokens in f32; their differences add up over the steps.
    EXPECT_NEAR(cut.loss, whole.loss, 1e-4 * whole.loss) << "step " << step;
    EXPECT_NEAR(cut.grad_norm, whole.grad_norm, 1e-3 * whole.grad_norm) << "step " << step;
  }
  EXPECT_EQ(lengths, (std::set<int64_t>{6, 12, 20})) << "all programs ran";
  EXPECT_EQ(first.compilations().size(), 3u) << "nothing was compiled on the way";
  for (const ParameterSpec& spec : buckets.parameters()) {
    const std::vector<double> got = buckets.store().get(spec.name).to_doubles(), wanted = padded.store().get(spec.name).to_doubles();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-3) << spec.name << " element " << i;
  }
}

TEST_F(Buckets, MicroBatchesAreRefused) {
  const LoadedRecipe loaded = recipe("{type: bucket, lengths: [6, 20]}");
  Session session(loaded.recipe);
  const std::unique_ptr<DataLoader> loader = session.training_loader(2, 0);
  Engine engine(session.backend());
  try {
    TrainStep step(session, engine, session.batch_types(*loader), {.global = 4, .micro = 2, .accumulation = 2},
                   {.total_steps = 20, .steps_per_epoch = 15, .samples_per_step = 4}, {session.all_batch_types(*loader)[1]});
    FAIL() << "gradients of two lengths are not added up";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    EXPECT_NE(error.text().find("set train.batch.micro to train.batch.global"), std::string::npos) << error.text();
  }
}

}  // namespace
}  // namespace galley
