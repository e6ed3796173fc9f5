// What ranks refuse before step 1: recipes and data that differ between them, and what cannot be trained on several ranks.

#include <gtest/gtest.h>

#include "libcore/base/file.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/rank_runs.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

TEST(RankTraining, DifferentRecipesAreRefusedByTheFirstDifference) {
  const TemporaryFolder folder;
  const LoadedRecipe first = test::load_text(kRecipe, {});
  const LoadedRecipe second = test::load_text(kRecipe, {"train.optimizer.lr=0.2"});
  const Trained run = train_each(folder / "run", {&first, &first, &second});
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(run.codes[r], ErrorCode::kRecipe);
    EXPECT_NE(run.errors[r].find("the recipes of the ranks differ: train.optimizer.lr is 0.1 on rank 0, but 0.2 on rank 2"),
              std::string::npos)
        << run.errors[r];
  }
  EXPECT_FALSE(file_exists(folder / "run"));
}

TEST(RankTraining, DifferentDataAreRefused) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    make_folders(folder / name);
    std::string rows = "x,y,label\n";
    for (int i = 0; i < (*name == 'a' ? 16 : 17); ++i) rows += "1,2,0\n3,4,1\n";
    write_file(folder / name + "/rows.csv", rows);
  }
  const auto recipe = [&](const char* name) {
    return test::load_text(R"(
recipe: 1
name: rows
model: {type: layers, input: {shape: [2]}, layers: [{name: fc, type: linear, out_features: 2}]}
loss: {type: cross_entropy}
data: {train: {source: {type: csv, path: rows.csv, header: true, columns: {dense: [x, y], label: label}}, workers: 1}}
train: {duration: 4 steps, batch: 8, optimizer: {type: sgd, lr: 0.1}}
)",
                           {cat("data.train.source.path=", folder / name, "/rows.csv")});
  };
  LoadedRecipe first = recipe("a");
  LoadedRecipe second = recipe("b");
  auto communicators = local_communicators(2, {.timeout_s = 60});
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (const size_t r : {size_t{0}, size_t{1}}) {
    threads.emplace_back([&, r] {
      try {
        TrainerOptions options;
        options.run = folder / "run";
        options.provenance = "{}";
        options.ranks = communicators[r].get();
        Trainer trainer(r == 0 ? first : second, dump_recipe(first.recipe, DumpKind::kFull), options);
        trainer.plan();
      } catch (const Error& error) {
        errors[r] = error.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_NE(error.find("data.train has 32 samples"), std::string::npos) << error;
  EXPECT_NE(errors[0].find("34 samples"), std::string::npos) << errors[0];
}

TEST(RankTraining, RefusesWhatItCannotTrain) {
  const TemporaryFolder folder;
  const auto error = [&](int ranks, const std::vector<std::string>& overrides) {
    return train(folder / "run", ranks, overrides).errors[0];
  };
  EXPECT_NE(error(2, {"sharding=none"}).find("sharding: none trains on one rank"), std::string::npos);
  EXPECT_NE(error(5, {}).find("not a multiple of the 5 ranks"), std::string::npos);
  EXPECT_NE(error(2, {"device=ref"}).find("device: ref trains on one rank"), std::string::npos);
  EXPECT_NE(error(4, {"sharding=hybrid", "sharding.mesh={data: 2, tensor: 2}"}).find("hybrid with a mesh that divides matrices"),
            std::string::npos);
  EXPECT_NE(error(2, {"sharding.hook={type: power_sgd}", "precision.reduce=bf16"}).find("sums factors in f32"), std::string::npos);
  EXPECT_NE(error(2, {"sharding.offload={gradients: disk}"}).find("exist only within a step"), std::string::npos);
  EXPECT_NE(error(2, {"sharding.tables={sharding: row_wise}"}).find("does not train them yet"), std::string::npos);
  EXPECT_NE(error(2, {"sharding=fsdp", "sharding.gather_limit=16B"}).find("'sharding.gather_limit' is 16 B, but the unit of"),
            std::string::npos);
  EXPECT_NE(error(4, {"sharding=zero1", "sharding.mesh={data: 2, shard: 2}"}).find("on one axis of the mesh"), std::string::npos);
}

}  // namespace
}  // namespace galley
