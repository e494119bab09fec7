package replicate

import "github.com/millrace/millrace/internal/mongo"

// Applied is the position that is applied, durable or not; zero while the job
// does not follow.
func Applied(j *Job) mongo.OpTime {
	j.state.mu.Lock()
	defer j.state.mu.Unlock()
	if j.state.applyEng == nil || j.state.phase != PhaseFollowing {
		return mongo.OpTime{}
	}
	return j.state.applyEng.Applied().Applied
}
