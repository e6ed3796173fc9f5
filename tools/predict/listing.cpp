#include "tools/predict/listing.h"

#include <cstdio>

#include "libcore/base/error.h"

namespace galley::tools {

std::string RankedClass::score_text() const {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", score);
  return text;
}

void Listing::add(const std::string& file, const std::vector<RankedClass>& top, const std::string& note) {
  nlohmann::ordered_json json{{"file", file}, {"top", nlohmann::ordered_json::array()}};
  for (size_t i = 0; i < top.size(); ++i) {
    json["top"].push_back({{"index", top[i].index}, {"label", top[i].label}, {"score", top[i].score}});
    rows_.push_back({i == 0 || repeat_file_ ? file : "", cat(i + 1), cat(top[i].index), top[i].label, top[i].score_text()});
  }
  if (!note.empty()) json["note"] = note;
  add_line(std::move(json));
}

void Listing::add_unreadable(const std::string& file, const std::string& message) {
  ++unreadable_;
  add_line({{"file", file}, {"error", {{"code", static_cast<int>(ErrorCode::kInput)}, {"message", message}}}});
  rows_.push_back({file, "", "", "", "", message});
}

void Listing::add_line(nlohmann::ordered_json line) {
  line["provenance"] = provenance_;
  lines_ += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Table Listing::table() const {
  Table table{{"file", "rank", "index", "label", "score"}, rows_};
  if (unreadable_ > 0) table.headings.push_back("error");
  for (std::vector<std::string>& row : table.rows) row.resize(table.headings.size());
  return table;
}

}  // namespace galley::tools
