// Cells of a benchmark, against hand-written lists.

#include "libcore/recipe/benchmark_cells.h"

#include <gtest/gtest.h>

#include "libcore/base/error.h"

namespace galley {
namespace {

std::vector<std::string> names(const BenchmarkSection& section) {
  std::vector<std::string> names;
  for (const BenchmarkCell& cell : cells_of(section)) names.push_back(cell.name());
  return names;
}

TEST(BenchmarkCells, RangesCountUp) {
  EXPECT_EQ(expand_range("1..4"), (std::vector<std::string>{"1", "2", "3", "4"}));
  EXPECT_EQ(expand_range("1..9x2"), (std::vector<std::string>{"1", "2", "4", "8"}));
  EXPECT_EQ(expand_range("2..10+4"), (std::vector<std::string>{"2", "6", "10"}));
  EXPECT_EQ(expand_range("../weights.safetensors"), (std::vector<std::string>{"../weights.safetensors"}));
  for (const char* endless : {"4..1", "0..8x2", "1..8x1", "1..4+0"}) EXPECT_THROW(expand_range(endless), Error) << endless;
}

TEST(BenchmarkCells, TheBatchIsFastest) {
  BenchmarkSection section;
  section.what = {"forward", "train_step"};
  section.sweep.threads = {"1..2"};
  section.sweep.batch = {"1", "16"};
  EXPECT_EQ(names(section),
            (std::vector<std::string>{"forward batch=1 threads=1", "forward batch=16 threads=1", "forward batch=1 threads=2",
                                      "forward batch=16 threads=2", "train_step batch=1 threads=1", "train_step batch=16 threads=1",
                                      "train_step batch=1 threads=2", "train_step batch=16 threads=2"}));
}

TEST(BenchmarkCells, ExcludeLeavesTheRest) {
  BenchmarkSection section;
  section.what = {"forward", "data"};
  section.sweep.batch = {"1..4"};
  ExcludeItem item;
  item.what = {"data"};
  item.batch = {"2..4"};
  section.exclude.items.push_back(item.clone());
  EXPECT_EQ(names(section),
            (std::vector<std::string>{"forward batch=1", "forward batch=2", "forward batch=3", "forward batch=4", "data batch=1"}));
  section.what = {"data"};
  section.sweep.batch = {"2"};
  EXPECT_THROW(cells_of(section), Error);
}

TEST(BenchmarkCells, MistakesNameTheirKey) {
  BenchmarkSection section;
  section.what = {"forwards"};
  try {
    cells_of(section);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "benchmark.what");
    EXPECT_EQ(error.suggestion(), "did you mean 'forward'?");
  }
  section.what = {"forward"};
  section.batch = {"0"};
  try {
    cells_of(section);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "benchmark.batch");
  }
  section.batch = {"1"};
  section.size = {240, 320, 3};
  try {
    cells_of(section);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.key(), "benchmark.size");
  }
}

}  // namespace
}  // namespace galley
