#include "tools/predict/listing.h"

#include <filesystem>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/under_key.h"

namespace galley::tools {
namespace {

/// Where the drawings of a sample go, without suffix: its file's name, with a number where two have the same.
std::string drawing_path(const std::string& folder, const std::string& sample, std::set<std::string>& taken) {
  const std::string stem = std::filesystem::path(sample).stem().string();
  std::string name = stem;
  for (int number = 2; !taken.insert(name).second; ++number) name = cat(stem, "-", number);
  return folder + "/" + name;
}

/// The files of a sample.
std::vector<std::string> files_of(const Source& source, int64_t index) {
  const auto* pairs = dynamic_cast<const PairSource*>(&source);
  if (pairs == nullptr) return {source.sample_name(index)};
  const auto [first, second] = pairs->files(index);
  return {first, second};
}

const char* suffix_of(DrawFormat format) { return format == DrawFormat::kJpeg ? ".jpg" : ".png"; }

/// Throws Error (kUsage) if drawings of the samples in `folder` would replace one of their files.
void check_replaced(const Source& source, const std::string& folder, DrawFormat format) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path real = fs::canonical(folder, ignored);
  std::map<std::string, std::string> inputs;  // of the folder, by name
  for (int64_t i = 0; i < source.size(); ++i) {
    for (const std::string& file : files_of(source, i)) {
      const fs::path path = fs::canonical(file, ignored);
      if (path.parent_path() == real) inputs.emplace(path.filename().string(), file);
    }
  }
  std::set<std::string> taken;
  for (int64_t i = 0; !inputs.empty() && i < source.size(); ++i) {
    const fs::path path = drawing_path(folder, source.sample_name(i), taken);
    for (const std::string suffix : {suffix_of(format), ".mask.png", ".flo"}) {
      const auto input = inputs.find(path.filename().string() + suffix);
      if (input == inputs.end()) continue;
      throw Error(ErrorCode::kUsage, cat("--draw ", folder, " would replace the input ", input->second)).suggest("name another folder");
    }
  }
}

}  // namespace

Listing::Listing(const Presenter* presenter, bool repeat_file, nlohmann::ordered_json provenance)
    : presenter_(presenter), repeat_file_(repeat_file), provenance_(std::move(provenance)) {
  if (presenter_ == nullptr) return;
  const std::vector<std::string> columns = presenter_->columns();
  headings_.insert(headings_.end(), columns.begin(), columns.end());
}

void Listing::draw_into(std::string folder, DrawFormat format, const Source& source) {
  check_replaced(source, folder, format);
  folder_ = std::move(folder);
  format_ = format;
}

void Listing::place_by(Pipeline pipeline) { pipeline_ = std::move(pipeline); }

void Listing::add(const Source& source, int64_t index, const std::map<std::string, Tensor>& results, const std::string& note) {
  const std::string file = source.sample_name(index);
  std::optional<Sample> original;
  if (!folder_.empty() || presenter_->needs_image()) original = source.read(index);
  const Image* image = original ? original->image() : nullptr;
  GALLEY_ASSERT(!original || image != nullptr, file);
  std::optional<Canvas> canvas;
  if (image != nullptr)
    canvas.emplace(Canvas{*image, !folder_.empty(), pipeline_->grid(image->height(), image->width(), {.index = index})});
  const Presentation shown =
      under_key("data.val.pipeline", [&] { return presenter_->present(results, file, canvas ? &*canvas : nullptr); });
  nlohmann::ordered_json json;
  const auto* pairs = dynamic_cast<const PairSource*>(&source);
  if (pairs == nullptr) {
    json["file"] = file;
  } else {
    json["files"] = pairs->files(index);
  }
  const auto made = nlohmann::ordered_json::parse(shown.json);
  for (const auto& [key, value] : made.items()) json[key] = value;
  if (shown.rows.empty()) rows_.push_back({file});
  for (size_t i = 0; i < shown.rows.size(); ++i) {
    rows_.push_back({i == 0 || repeat_file_ ? file : ""});
    rows_.back().insert(rows_.back().end(), shown.rows[i].begin(), shown.rows[i].end());
  }
  if (!folder_.empty()) draw(file, *image, shown, json);
  if (!note.empty()) json["note"] = note;
  add_line(std::move(json));
}

void Listing::add_unreadable(const std::string& file, const std::string& message) {
  ++unreadable_;
  add_line({{"file", file}, {"error", {{"code", static_cast<int>(ErrorCode::kInput)}, {"message", message}}}});
  std::vector<std::string>& row = rows_.emplace_back(headings_.size());
  row.front() = file;
  row.push_back(message);
}

void Listing::add_line(nlohmann::ordered_json line) {
  line["provenance"] = provenance_;
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (take_line_) take_line_(text);
  lines_ += text;
}

void Listing::draw(const std::string& sample, const Image& image, const Presentation& shown, nlohmann::ordered_json& json) {
  const std::string path = drawing_path(folder_, sample, drawn_);
  if (!shown.mask_png.empty()) {
    write_file(path + ".mask.png", shown.mask_png);
    json["mask"] = path + ".mask.png";
  }
  if (!shown.flow_file.empty()) {
    write_file(path + ".flo", shown.flow_file);
    json["flow"] = path + ".flo";
  }
  const Image& drawn = shown.overlay ? *shown.overlay : image;
  const Image whole = shown.lines.empty() ? drawn : draw_labels(drawn, shown.lines);
  format_ == DrawFormat::kJpeg ? write_jpeg(path + suffix_of(format_), whole) : write_png(path + suffix_of(format_), whole);
}

Table Listing::table() const {
  Table table{headings_, rows_};
  if (unreadable_ > 0) table.headings.push_back("error");
  for (std::vector<std::string>& row : table.rows) row.resize(table.headings.size());
  return table;
}

}  // namespace galley::tools
