// galley-weights tokenizer train: learns a byte-level BPE vocabulary from text files.

#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/text/readers.h"
#include "libcore/text/scanner.h"
#include "libcore/text/train_bpe.h"
#include "tools/common/output_file.h"
#include "tools/common/provenance.h"
#include "tools/weights/weights.h"

namespace galley::tools {

using Json = nlohmann::ordered_json;

void WeightsTool::add_tokenizer_options(Command& command) {
  Command tokenizer = command.add_verb("tokenizer", "learn the vocabulary of a tokenizer");
  tokenizer.allow_one_verb();
  Command train =
      verb(tokenizer, "train", "learn a byte-level BPE vocabulary from texts; writes a tokenizer.json", &WeightsTool::train_tokenizer);
  train.add_option("FILE", words_, "text files in UTF-8");
  train.add_option("--vocab-size", vocabulary_.size, "total number of tokens: special tokens, 256 bytes and merges")
      .take_last()
      .show_default();
  train.add_option("--min-frequency", vocabulary_.min_count, "a pair that occurs less often is not merged")
      .in_range(1, 1 << 30)
      .take_last()
      .show_default();
  train.add_option("--special", vocabulary_.special, "a special token, e.g. '<|endoftext|>'; the first has the id 0 (repeatable)")
      .one_word_each();
  std::string patterns;
  for (const std::string& name : text::pattern_names()) patterns += (patterns.empty() ? "" : ", ") + name;
  train.add_option("--pattern", vocabulary_.pattern, "pre-tokenization: " + patterns).take_last().show_default();
  train.add_option("-o,--output", output_, "the tokenizer.json to write").group("Output").take_last();
}

int WeightsTool::train_tokenizer() const {
  check_word_count(1, 1'000'000, "one or more text files");
  check_output_file(output_, "tokenizer train writes a file", "tokenizer.json");
  text::TrainBpeOptions options{
      .vocabulary = vocabulary_.size, .min_count = vocabulary_.min_count, .pattern = vocabulary_.pattern, .special = vocabulary_.special};
  std::unique_ptr<text::BpeTrainer> trainer;
  try {
    trainer = std::make_unique<text::BpeTrainer>(options);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, error.message()).suggest("--vocab-size, --special and --pattern say what is learned");
  }
  Progress progress(common.progress);
  int64_t bytes = 0;
  for (size_t i = 0; i < words_.size(); ++i) {
    const std::string contents = read_file(words_[i]);
    trainer->add(contents, words_[i]);
    bytes += static_cast<int64_t>(contents.size());
    if (words_.size() == 1) continue;
    progress.update(static_cast<double>(i + 1) / static_cast<double>(words_.size()),
                    cat("counted ", i + 1, " of ", words_.size(), " files, ", human_bytes(bytes)),
                    Json{{"file", words_[i]}, {"files", i + 1}, {"total_files", words_.size()}, {"bytes", bytes}}.dump());
  }
  progress.clear();
  const std::string file = trainer->finish();
  write_file(output_, file);
  const auto made = text::parse_tokenizer_json(file, output_);
  if (made->size() < vocabulary_.size)
    log(LogLevel::kWarning,
        cat("the texts have pairs for ", made->size(), " tokens only, fewer than the ", vocabulary_.size, " asked for"));
  if (common.format == Format::kJson) {
    Provenance provenance;
    provenance.tool = "galley-weights";
    provenance.overrides = words_;
    print(Json{{"file", output_},
               {"tokens", made->size()},
               {"special", made->special_tokens().size()},
               {"text_bytes", bytes},
               {"provenance", provenance_json(provenance)}}
              .dump() +
          "\n");
  } else {
    print(Table{{"file", "tokens", "special", "text"},
                {{output_, std::to_string(made->size()), std::to_string(made->special_tokens().size()), human_bytes(bytes)}}});
  }
  return kExitDone;
}

}  // namespace galley::tools
