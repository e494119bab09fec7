// Package config holds the settings of the commands: where they come from
// (flag, environment, file, default, in this order) and whether they can be
// used. Everything that is wrong with them is said before any connection is
// opened, each problem with what it is, where it was set and how to mend it.
package config
