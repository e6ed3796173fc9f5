#include "tools/convert-layout/convert_layout.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/weights/safetensors.h"
#include "tools/common/output_file.h"

namespace galley::tools {
namespace {

std::string list_text(const Shape& sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return "[" + text + "]";
}

/// The format of a tensor of that rank in the new file: a tensor of another rank than the format's keeps what it has.
MemoryFormat target_format(const std::string& to, int rank, const MemoryFormat& present) {
  if (to == "contiguous") return {};
  const bool fits = (to == "channels_last" && rank == 4) || (to == "channels_last_3d" && rank == 5);
  return fits ? MemoryFormat::parse(to) : present;
}

}  // namespace

void ConvertLayoutTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_option("--to", to_, "format of rank-4 (channels_last) or rank-5 (channels_last_3d) tensors; contiguous: of all")
      .one_of({"contiguous", "channels_last", "channels_last_3d"})
      .group("Convert")
      .take_last();
  command
      .add_option("--check", check_,
                  "instead of converting files, compile the model of this recipe, name what loses channels_last, and time each format")
      .type_name("RECIPE")
      .group("Check")
      .take_last();
  command.add_flag("--values", values_, "with --check: print each activation of rank 4 or 5 with its format, too").group("Check");
  command.add_option("--apply", apply_, "with --check: write the fastest format to this recipe fragment")
      .type_name("FILE")
      .group("Check")
      .take_last();
}

int ConvertLayoutTool::run() {
  if (!check_.empty()) {
    if (!to_.empty() || !output_.empty())
      throw Error(ErrorCode::kUsage, cat(to_.empty() ? "-o" : "--to", " converts a file; --check looks at a recipe's model"))
          .suggest("--save json:FILE keeps the result of --check");
    if (dry_run_ && !apply_.empty()) throw Error(ErrorCode::kUsage, "--apply writes the fastest format, and --dry-run measures nothing");
    words_.insert(words_.begin(), check_);
    return RecipeTool::run();
  }
  if (!apply_.empty() || values_) throw Error(ErrorCode::kUsage, cat(values_ ? "--values" : "--apply", " goes with --check RECIPE"));
  for (const std::string& word : words_) {
    if (is_override(word)) throw Error(ErrorCode::kUsage, cat("'", word, "' is an override: those are for --check RECIPE"));
  }
  if (words_.size() != 1)
    throw Error(ErrorCode::kUsage, words_.empty() ? "no file was named" : "more than one file was named")
        .suggest("galley-convert-layout in.safetensors --to channels_last -o out.safetensors");
  if (to_.empty())
    throw Error(ErrorCode::kUsage, "--to does not say which format").suggest("--to contiguous, channels_last or channels_last_3d");
  if (!dry_run_) {
    check_output_file(output_, "the converted tensors are a file", "out.safetensors");
    check_outputs({output_});
  }
  return convert(words_[0]);
}

int ConvertLayoutTool::convert(const std::string& input) {
  const SafetensorsFile file(input);
  file.verify();
  Metadata metadata;
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with("galley.digest") || key == kMemoryFormatKey) continue;
    metadata[key] = value;
  }
  metadata["galley.parents"] = nlohmann::json::array({file.header_digest()}).dump();
  std::vector<TensorSource> sources;
  Table table{{"tensor", "shape", "from", "to", "stored as", "strides"}, {}};
  nlohmann::ordered_json json{{"tensors", nlohmann::ordered_json::array()}};
  int64_t changed = 0, bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!entry.dtype)
      throw Error(ErrorCode::kInput,
                  cat(input, ": tensor '", entry.name, "' has the dtype ", entry.dtype_text, ", which cannot be converted"));
    const MemoryFormat to = target_format(to_, entry.shape.rank(), entry.format);
    sources.emplace_back(entry.name, *entry.dtype, entry.shape, [&file, entry] { return file.read_stored(entry); }, to);
    bytes += entry.end - entry.begin;
    if (to == entry.format) continue;
    ++changed;
    Shape physical;
    for (const int axis : to.order(entry.shape.rank())) physical.push_back(entry.shape[axis]);
    table.rows.push_back(
        {entry.name, list_text(entry.shape), entry.format.str(), to.str(), list_text(physical), list_text(to.strides(entry.shape))});
    json["tensors"].push_back({{"name", entry.name},
                               {"shape", std::vector<int64_t>(entry.shape.begin(), entry.shape.end())},
                               {"from", entry.format.str()},
                               {"to", to.str()},
                               {"stored_shape", std::vector<int64_t>(physical.begin(), physical.end())}});
  }
  if (!dry_run_) {
    // Proved equal before it gets its name: an interrupted or wrong conversion leaves nothing.
    const std::string unproved = output_ + ".unproved";
    try {
      write_safetensors(unproved, sources, metadata);
      const SafetensorsFile written(unproved);
      written.verify();
      for (const SafetensorsEntry& entry : file.entries()) {
        const SafetensorsEntry* other = written.find(entry.name);
        if (other == nullptr || !bit_equal(file.read(entry), written.read(*other)))
          throw InternalError(cat("the converted tensor '", entry.name, "' differs"));
      }
      rename_durably(unproved, output_);
    } catch (const std::exception&) {
      remove_tree(unproved);
      throw;
    }
  }
  json["tensors_changed"] = changed;
  json["bytes"] = bytes;
  Provenance who;
  who.tool = name();
  json["provenance"] = provenance_json(who);
  log(LogLevel::kInfo, cat(changed, " of ", file.entries().size(), " tensors ", dry_run_ ? "would change" : "changed, all proved equal",
                           ", ", human_bytes(static_cast<double>(bytes))));
  save_and_print(json.dump() + "\n", table);
  return kExitDone;
}

}  // namespace galley::tools
