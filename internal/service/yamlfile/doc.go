// Package yamlfile reads small YAML files of known keys. It reports errors with line and remedy, and knows nothing
// of what the files are about.
package yamlfile
