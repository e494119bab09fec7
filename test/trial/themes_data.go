package trial

// dataThemes are about few documents that have it in them: what is hard is what
// they are, where they are, and who else writes.
func dataThemes() []Theme {
	return []Theme{
		{"ring", ring},
		{"ring-rotated", rotated},
		{"ring-keys", ringKeys},
		{"serial", serial},
		{"apply-ops", applyOps},
		{"foreign", foreign},
		{"foreign-merged", foreignMerged},
		{"into-one", intoOne},
		{"names-in-lag", namesInLag},
		{"expiry", expiry},
		{"renamed-in-dispute", renamedInDispute},
		{"hostile-ids", hostile},
		{"in-and-out", inAndOut},
		{"long-statements", long},
		{"prepared", prepared},
	}
}
