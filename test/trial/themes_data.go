package trial

import "math/rand/v2"

// dataThemes are about few documents that have it in them: what is hard is what
// they are, where they are, and who else writes.
func dataThemes() []Theme {
	themes := []Theme{
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
		{"paused", paused},
		{"foreign-drop", foreignDrop},
		{"apply-ops-by-uuid", applyOpsByUUID},
		{"retained", retained},
		{"later-references", laterReferences},
	}
	for i, t := range themes {
		themes[i].Make = func(r *rand.Rand) Trial {
			tr := t.Make(r)
			tr.Calm = true
			return tr
		}
	}
	return themes
}
