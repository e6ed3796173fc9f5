#pragma once
// Conversations as text for a model: the chat template of a hub folder.

#include <optional>
#include <string>
#include <vector>

#include "libcore/text/jinja.h"

namespace galley::text {

struct ChatMessage {
  std::string role;  ///< system, user, assistant
  std::string content;
};

class ChatTemplate {
 public:
  /// Of a folder: chat_template.jinja or, without it, chat_template of tokenizer_config.json (a template, or a list of which `default`
  /// counts). Of a file: the template itself (*.jinja) or a tokenizer_config.json. nullopt: the folder has none. Throws Error (kInput),
  /// with the line, for a file that is damaged or a template that uses what is not supported.
  static std::optional<ChatTemplate> read(const std::string& path);

  /// The text of a conversation, up to where the model answers. It has all special tokens that belong to it: encode it without adding any.
  /// Throws Error (kInput) where the template refuses the conversation.
  std::string render(const std::vector<ChatMessage>& messages) const;
  /// The file that it came from.
  const std::string& place() const { return place_; }

 private:
  ChatTemplate(std::string_view source, std::string file, jinja::Dict variables);

  std::string place_;
  jinja::Template template_;
  jinja::Dict variables_;  ///< bos_token and the other special tokens of tokenizer_config.json, else of special_tokens_map.json
};

}  // namespace galley::text
