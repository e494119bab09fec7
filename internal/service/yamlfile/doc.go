// Package yamlfile reads small YAML files of known keys: tokens, alerts, the provider of
// logins. It tells what is wrong with its line and how to mend it, and holds nothing of
// what the files are about.
package yamlfile
