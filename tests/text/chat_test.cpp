// Laws: a chat template gives the text that transformers makes (golden/chat.json, make_chat_golden.py), or refuses the conversation where
// transformers does; what the interpreter does not know, and mistakes, are errors with their line.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/text/jinja.h"
#include "tests/text/golden.h"

namespace galley::text {
namespace {

nlohmann::ordered_json chat_golden() {
  std::ifstream file(golden_folder() + "/chat.json");
  return nlohmann::ordered_json::parse(file);
}

TEST(ChatTemplate, TextsAreThoseOfTransformers) {
  const nlohmann::ordered_json golden = chat_golden();
  int texts = 0, refused = 0;
  for (const auto& c : golden["cases"]) {
    const std::string name = c["name"];
    SCOPED_TRACE(name);
    std::string got;
    try {
      const std::string source = c["template"];
      const auto& families = golden["templates"];
      const jinja::Template made(families.contains(source) ? families[source].get<std::string>() : source, name);
      got = made.render(jinja::Value::from_json(c["variables"]).dict());
    } catch (const Error& error) {
      EXPECT_TRUE(c["text"].is_null()) << error.message();
      EXPECT_NE(error.message().find("the template refuses the conversation: "), std::string::npos) << error.message();
      ++refused;
      continue;
    }
    if (c["text"].is_null()) {
      ADD_FAILURE() << "should refuse, gives " << shown(got);
      continue;
    }
    EXPECT_EQ(got, c["text"].get<std::string>());
    ++texts;
  }
  EXPECT_GT(texts, 90);
  EXPECT_GE(refused, 3);
}

TEST(ChatTemplate, MistakesHaveTheirLine) {
  const nlohmann::ordered_json golden = chat_golden();
  for (const auto& c : golden["bad"]) {
    const std::string name = c["name"];
    SCOPED_TRACE(name);
    try {
      const jinja::Template made(c["template"].get<std::string>(), name);
      ADD_FAILURE() << "renders " << shown(made.render({}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      EXPECT_EQ(error.place().str(), cat(name, ":", c["line"].get<int>())) << error.message();
    }
  }
}

TEST(ChatTemplate, HostileInputEnds) {
  const auto fails = [](const std::string& source, const std::string& part) {
    try {
      const std::string text = jinja::Template(source, "t").render({});
      ADD_FAILURE() << "renders " << text.size() << " bytes";
    } catch (const Error& error) {
      EXPECT_NE(cat(error.place().str(), ": ", error.message()).find(part), std::string::npos) << error.text();
    }
  };
  fails("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", "nested too deeply");
  fails("{{ " + std::string(5000, '-') + "1 }}", "nested too deeply");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if 1 %}";
  fails(blocks, "nested too deeply");
  fails("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply");
  fails("{{ 'x' * 1000000000000 }}", "too long");
  fails("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "too long");
  fails("{% set x = 'a' * 10000 %}{{ x|replace('a', x)|replace('a', x) }}", "too long");
  fails("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}", "t:1: ");
  fails("{{ range(100000000) }}", "too many");
  fails("{{ 9999999999999999999 }}", "too large");
  fails("{{ 9223372036854775807 + 1 }}", "too large");
  for (const std::string part : {"{%", "{{", "{#", "{% raw %}", "{{ 'a", "{% if", "{% for x in", "{% set x", "{% macro f(", "{{ a["})
    fails(part, "t:1: ");
}

}  // namespace
}  // namespace galley::text
