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

/// What three ranks say, of which the last one has `overrides`, but the recipe's text of the others.
std::string refusal_of_data(const std::string& folder, const std::vector<std::string>& overrides) {
  constexpr std::string_view kRows = R"(
recipe: 1
name: rows
model: {type: layers, input: {shape: [2]}, layers: [{name: fc, type: linear, out_features: 2}]}
loss: {type: cross_entropy}
data: {train: {source: {type: csv, path: [], header: true, columns: {dense: [x, y], label: label}}, workers: 1}}
train: {duration: 4 steps, batch: 12, optimizer: {type: sgd, lr: 0.1}}
)";
  const auto files = [&](const char* second) {
    return cat("data.train.source.path=[", folder, "/a.csv, ", folder, "/", second, ".csv, ", folder, "/c.csv]");
  };
  const LoadedRecipe first = test::load_text(kRows, {files("b")});
  std::vector<std::string> changed{files("b")};
  for (const std::string& each : overrides) changed.push_back(each.size() == 1 ? files(each.c_str()) : each);
  const LoadedRecipe other = test::load_text(kRows, changed);
  auto communicators = local_communicators(3, {.timeout_s = 60});
  const std::vector<std::string> errors = as_ranks(communicators, [&](Communicator& rank) {
    TrainerOptions options;
    options.run = folder + "/run";
    options.provenance = "{}";
    options.ranks = &rank;
    Trainer trainer(rank.rank() == 2 ? other : first, dump_recipe(first.recipe, DumpKind::kFull), options);
    trainer.plan();
  });
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_EQ(errors[0], errors[2]);
  return errors[0];
}

/// Files a, b and c, and others in the place of b. Their middle is in the second block of samples that ranks compare.
TEST(RankTraining, DifferentDataAreRefusedByTheFirstSample) {
  const TemporaryFolder folder;
  make_folders(folder.path());
  const auto write = [&](const char* name, int64_t rows, int64_t changed) {
    std::string text = "x,y,label,other\n";
    for (int64_t i = 0; i < rows; ++i) text += i == changed ? "1,2,1,0\n" : "1,2,0,0\n";
    write_file(folder / name + ".csv", text);
  };
  write("a", 4000, -1);
  write("b", 200, 150);
  write("c", 100, -1);
  write("d", 200, -1);
  write("e", 199, -1);
  EXPECT_EQ(refusal_of_data(folder.path(), {}), "");
  const std::string differ = "the data of the ranks differ: sample ", in = folder.path() + "/";
  EXPECT_EQ(refusal_of_data(folder.path(), {"d"}),
            cat(differ, "4000 of data.train is ", in, "b.csv:2 of class 0 on rank 0, but ", in, "d.csv:2 of class 0 on rank 2"));
  EXPECT_EQ(refusal_of_data(folder.path(), {"data.train.source.columns.label=other"}),
            cat(differ, "4150 of data.train is ", in, "b.csv:152 of class 1 on rank 0, but ", in, "b.csv:152 of class 0 on rank 2"));
  EXPECT_EQ(refusal_of_data(folder.path(), {"e"}),
            cat(differ, "4000 of data.train is ", in, "b.csv:2 of class 0 (4300 samples) on rank 0, but ", in,
                "e.csv:2 of class 0 (4299 samples) on rank 2"));
  EXPECT_EQ(
      refusal_of_data(folder.path(), {cat("data.train.source.path=[", in, "a.csv, ", in, "b.csv]")}),
      cat(differ, "4200 of data.train is ", in, "c.csv:2 of class 0 (4300 samples) on rank 0, but not there (4200 samples) on rank 2"));
}

TEST(RankTraining, RefusesWhatItCannotTrain) {
  const TemporaryFolder folder;
  const auto error = [&](int ranks, const std::vector<std::string>& overrides) {
    return train(folder / "run", ranks, overrides).errors[0];
  };
  EXPECT_NE(error(2, {"sharding=none"}).find("sharding: none trains on one rank"), std::string::npos);
  EXPECT_NE(error(5, {}).find("not a multiple of the 5 ranks"), std::string::npos);
  EXPECT_NE(error(2, {"device=ref"}).find("device: ref trains on one rank"), std::string::npos);
  EXPECT_NE(error(4, {"sharding=pipeline", "sharding.mesh={pipe: 2, tensor: 2}"}).find("pipeline with a mesh that divides matrices"),
            std::string::npos);
  EXPECT_NE(error(2, {"sharding.hook={type: power_sgd}", "precision.reduce=bf16"}).find("sums factors in f32"), std::string::npos);
  EXPECT_NE(error(2, {"sharding.offload={gradients: disk}"}).find("exist only within a step"), std::string::npos);
  EXPECT_NE(error(2, {"sharding.tables={sharding: row_wise}"}).find("does not train them yet"), std::string::npos);
  EXPECT_NE(error(2, {"sharding=fsdp", "sharding.gather_limit=16B"}).find("'sharding.gather_limit' is 16 B, but the unit of"),
            std::string::npos);
  EXPECT_NE(error(4, {"sharding=zero1", "sharding.mesh={data: 2, shard: 2}"}).find("on one axis of the mesh"), std::string::npos);
  EXPECT_NE(error(4, {"sharding=tensor", "sharding.mesh={tensor: 1, data: 4}"}).find("mesh.tensor is 1"), std::string::npos);
}

}  // namespace
}  // namespace galley
