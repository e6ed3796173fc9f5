#include "libcore/text/chat.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/text/json_node.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kTemplate = "chat_template.jinja";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokens = "special_tokens_map.json";

Json read_config(const std::string& path) {
  const std::string text = read_file(path);
  const JsonNode checked = JsonNode::parse(text, path);  // an error has line and column
  if (!checked.json().is_object()) checked.fail("must be a JSON object");
  return Json::parse(text);
}

/// "bos_token": "<s>" or {"content": "<s>", ...}: the variables of these names.
jinja::Dict special_tokens(const Json& config) {
  jinja::Dict variables;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const Json* text = &value;
    if (value.is_object() && value.contains("content")) text = &value["content"];
    if (text->is_string()) variables.emplace_back(key, text->get<std::string>());
  }
  return variables;
}

/// The template in a tokenizer_config.json; nullopt if it has none.
std::optional<std::string> template_in(const Json& config, const std::string& file) {
  const auto refuse = [&](const char* message) { throw Error(ErrorCode::kInput, cat("chat_template ", message)).at({.file = file}); };
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) refuse("must be text or a list of templates");
  for (const Json& item : *found) {
    const bool complete = item.is_object() && item.contains("name") && item.contains("template") && item["template"].is_string();
    if (!complete) refuse("has an item without a name or a template");
    if (item["name"] == "default") return item["template"].get<std::string>();
  }
  refuse("has no template called default");
  return std::nullopt;
}

/// Calls `call`. A mistake in a template that is a value of a JSON file has the line of the template, which is not one of the file.
template <class Call>
auto placed(const std::string& file, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    const std::string cure = error.suggestion().empty()
                                 ? "predict.chat_template=FILE.jinja takes another template; --prompt continues a text without one"
                                 : error.suggestion();
    if (file.ends_with(".jinja") || error.place().line == 0) throw Error(error).suggest(cure);
    throw Error(error.code(), cat("chat_template, line ", error.place().line, ": ", error.message())).at({.file = file}).suggest(cure);
  }
}

/// The text of a template file.
std::string read_template(const std::string& file) {
  std::string text = read_file(file);
  try {
    check_utf8(text, file);
  } catch (const Error& error) {
    throw Error(error.code(), "the template is not UTF-8").at(error.place()).suggest("convert the file to UTF-8");
  }
  return text;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string file, jinja::Dict variables)
    : place_(std::move(file)),
      template_(placed(place_, [&] { return jinja::Template(source, place_); })),
      variables_(std::move(variables)) {}

std::optional<ChatTemplate> ChatTemplate::read(const std::string& path) {
  const bool folder = fs::is_directory(path);
  const fs::path base = folder ? fs::path(path) : fs::path(path).parent_path();
  const fs::path config_file = folder || path.ends_with(".jinja") ? base / kTokenizerConfig : fs::path(path);
  const fs::path template_file = folder ? base / kTemplate : fs::path(path);
  const bool own = folder ? fs::exists(template_file) : path.ends_with(".jinja");
  Json config = Json::object();
  if (fs::exists(config_file) || (!folder && !own)) config = read_config(config_file.string());
  jinja::Dict variables = special_tokens(config);
  if (const fs::path map = base / kSpecialTokens; fs::exists(map)) {  // of older folders
    for (auto& [name, token] : special_tokens(read_config(map.string()))) {
      const auto same = [&name = name](const auto& variable) { return variable.first == name; };
      if (std::none_of(variables.begin(), variables.end(), same)) variables.emplace_back(name, std::move(token));
    }
  }
  if (own) return ChatTemplate(read_template(template_file.string()), template_file.string(), std::move(variables));
  const std::optional<std::string> source = template_in(config, config_file.string());
  if (!source) return std::nullopt;
  return ChatTemplate(*source, config_file.string(), std::move(variables));
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  jinja::List list;
  for (const ChatMessage& message : messages) list.emplace_back(jinja::Dict{{"role", message.role}, {"content", message.content}});
  jinja::Dict variables = variables_;
  for (auto& [key, value] : jinja::Dict{{"messages", std::move(list)}, {"tools", {}}, {"documents", {}}, {"add_generation_prompt", true}})
    variables.emplace_back(key, std::move(value));
  return placed(place_, [&] { return template_.render(variables); });
}

}  // namespace galley::text
