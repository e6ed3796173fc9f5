#pragma once
// Pages of results that need nothing else: one file, scripts and styles inside, no request leaves it.

#include <string>
#include <string_view>

namespace galley {

struct HtmlPage {
  std::string_view title;   // fixed text: it is not escaped
  std::string_view body;    // HTML
  std::string json;         // an object: `data` of the script
  std::string_view script;  // reads `data`; has byId, element, clear, number, bytes and table(id, columns, rows)
};

std::string html_page(const HtmlPage& page);

}  // namespace galley
