package config

import "github.com/spf13/pflag"

// titled is the annotation of a flag that stands below a title.
const titled = "section"

// section puts the flags registered since the last one below a title. Flags with
// titles keep the order in which they are registered.
func section(fs *pflag.FlagSet, title string) {
	fs.SortFlags = false
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[titled] == nil {
			_ = fs.SetAnnotation(f.Name, titled, []string{title})
		}
	})
}

// Section is flags below a title.
type Section struct {
	Title string
	Flags *pflag.FlagSet
}

// Sections are the flags of fs that are shown, by their titles. What has none is
// added to the section before it; if there is none, it is one of flags.
func Sections(fs *pflag.FlagSet) []Section {
	var all []Section
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		title := f.Annotations[titled]
		switch last := len(all) - 1; {
		case last < 0 && title == nil:
			all = append(all, Section{Title: "Flags"})
		case title != nil && (last < 0 || title[0] != all[last].Title):
			all = append(all, Section{Title: title[0]})
		}
		last := &all[len(all)-1]
		if last.Flags == nil {
			last.Flags = pflag.NewFlagSet(last.Title, pflag.ContinueOnError)
			last.Flags.SortFlags = false
		}
		last.Flags.AddFlag(f)
	})
	return all
}
